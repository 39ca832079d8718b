"""A fast CPU runner: OpenVINO's paged attention over a graph built from configuration and weights."""

from foredraft.execution.openvino.runner import OpenVinoRunner

__all__ = ["OpenVinoRunner"]

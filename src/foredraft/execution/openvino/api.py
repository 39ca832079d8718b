"""OpenVINO's modules, imported in one place.

They are `Any` to the type checker: OpenVINO is optional, and its stubs disagree with its classes.
"""

from __future__ import annotations

import importlib
from typing import Any

from foredraft.errors import ExecutionError


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExecutionError(
            f"the fast CPU runner needs OpenVINO ({error}); install it with: pip install 'foredraft[fast]'"
        ) from error


ov = _module("openvino")
ops = _module("openvino.opset13")
PagedAttentionExtension = _module("openvino.op")._PagedAttentionExtension
# Turns float32 constants into float16 ones that are marked to stay so.
compress_constants = _module("openvino._offline_transformations").compress_model_transformation

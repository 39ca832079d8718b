"""A certificate of losslessness that users run on their own models."""

from foredraft.certificate.certify import DEFAULT_PROMPTS, CertificateOptions, certify
from foredraft.certificate.report import Certificate, CheckResult

__all__ = ["DEFAULT_PROMPTS", "Certificate", "CertificateOptions", "CheckResult", "certify"]

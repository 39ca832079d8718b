"""`Certificate`: the outcome of the losslessness checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not exercised"]


@dataclass(frozen=True)
class CheckResult:
    """One check's verdict, with the numbers it rests on."""

    name: str
    status: Status
    summary: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def passed(self) -> bool:
        return self.status == "passed"


@dataclass(frozen=True)
class Certificate:
    """All checks of one target and drafter."""

    target: str
    drafter: str
    settings: dict[str, Any]
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """True only if every check ran with drafted tokens and none failed."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "passed": self.passed,
            "target": self.target,
            "drafter": self.drafter,
            "settings": self.settings,
            "checks": [
                {
                    "name": check.name,
                    "status": check.status,
                    "summary": check.summary,
                    "details": check.details,
                }
                for check in self.checks
            ],
        }

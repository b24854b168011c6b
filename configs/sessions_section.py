"""The settings of sessions (``sessions``)."""

from __future__ import annotations

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from .section import Section, setting


class SessionsSection(Section):
    """Clients that send tasks straight to warm workers."""

    max_sessions: int = setting(200, "sessions at once", live=True, ge=1, le=100_000)
    max_leases_per_session: int = setting(64, "workers one session may hold", live=True, ge=1, le=4096)
    renew_s: float = setting(2.0, "how often a client renews", ge=0.2, le=60)
    expire_s: float = setting(10.0, "a session not renewed this long is closed", live=True, ge=1, le=600)
    expire_afar_s: float = setting(
        60.0, "the same for clients on other machines, which may be cut off for a while", live=True, ge=1, le=600
    )

    @model_validator(mode="after")
    def _one_renewal_may_be_lost(self) -> SessionsSection:
        for key in ("expire_s", "expire_afar_s"):
            if getattr(self, key) < 2 * self.renew_s:
                raise PydanticCustomError(
                    "inconsistent",
                    "{key} ({expire}) must be at least twice renew_s ({renew}), or one late renewal ends a session",
                    {"key": key, "expire": getattr(self, key), "renew": self.renew_s},
                )
        return self

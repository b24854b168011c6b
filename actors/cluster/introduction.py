"""What a host tells the cluster of itself: its software, the ledger version it knows, its site."""

from __future__ import annotations

import actorgrid
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.command import VERSION
from actorgrid.actors.ledger.commands import ChangeMember
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.server import Server

VERSION_TOLD_S = 600.0
"""A minority waits for the others to come back."""
SITE_AGAIN_S = 5.0


class Introduction:
    """Of the host of *server*, which follows the ledger."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger

    async def tell(self) -> None:
        """Tell all of it."""
        await self.tell_version()
        await self._tell_site()

    async def tell_version(self) -> None:
        """Tell the cluster which software this host runs now, and which ledger version it knows."""
        known = self._ledger.members.get(self._server.host.host_id)
        mine = ChangeMember(self._server.host.host_id, version=actorgrid.__version__, ledger_version=VERSION)
        if known is not None and (known.get("version"), known.get("ledger_version")) != (mine.version, VERSION):
            try:
                await self._ledger.propose(mine, VERSION_TOLD_S)
            except ActorGridError as error:
                self._server.log.warning("the cluster does not know this host's version yet: %s", error)

    async def _tell_site(self) -> None:
        """Tell the cluster in which site this host is, as soon as all hosts know what a site is."""
        host_id, site = self._server.host.host_id, self._server.host.settings.cluster.site
        while (known := self._ledger.members.get(host_id)) is not None and known.get("site", "") != site:
            try:
                await self._ledger.propose(ChangeMember(host_id, site=site), VERSION_TOLD_S)
            except ActorGridError as error:
                self._server.log.info("the cluster does not know this host's site yet: %s", error)
                await self._server.sleep(SITE_AGAIN_S)

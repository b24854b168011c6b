"""A server of a shop that crashes as it is told to."""

from __future__ import annotations

import os
from dataclasses import dataclass

from actorgrid.supervisors.server import Server, handles


@dataclass(frozen=True)
class Sell:
    item: str
    card_token: str = "4111-1111"


@dataclass(frozen=True)
class Burn:
    pass


class Till(Server):
    def start(self) -> None:
        self.sold: list[str] = []
        self.password = "tea-time"

    @handles(Sell)
    def _sell(self, sell: Sell) -> int:
        self.sold.append(sell.item)
        if sell.item == "cat":
            raise ZeroDivisionError("cats are not sold")
        return len(self.sold)

    @handles(Burn)
    def _burn(self, _burn: Burn) -> None:
        os._exit(9)


class BadStart(Server):
    def start(self) -> None:
        raise KeyError("drawer")


class Waits(Server):
    async def start(self) -> None:
        await self.sleep(600.0)

"""Secrets sealed to the cluster's authorities, opened by those who have their keys, sealed anew when those change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.files.private_files import make_private_folder
from actorgrid.actors.security.certificates import pem
from actorgrid.actors.security.host_material import WRAP_FILE, HostMaterial, store_material
from actorgrid.actors.security.keys import ensure_wrap_key, store_authority
from actorgrid.actors.security.secret_boxes import SecretBoxes
from actorgrid.errors import KeyUnusable
from tests.security.rig import Cluster

VALUE = b"not for everybody"


def record(boxes: dict[str, str], name: str = "hf", user: str = "ann@lab") -> Any:
    return {"name": name, "user_id": user, "shared": False, "boxes": boxes, "set_at": 1.0, "set_by": user}


def host(folder: Path, cluster: Cluster, name: str, voter: bool = False) -> tuple[SecretBoxes, HostMaterial]:
    make_private_folder(folder)
    material = cluster.host(name)
    store_material(folder, material)
    if voter:
        store_authority(folder, cluster.authority, ensure_wrap_key(folder / WRAP_FILE))
    return SecretBoxes(folder, name), material


def test_everybody_seals_and_voters_open(tmp_path: Path) -> None:
    cluster = Cluster()
    voter, _ = host(tmp_path / "v", cluster, "v", voter=True)
    learner, material = host(tmp_path / "l", cluster, "l")
    sealed = record(learner.seal(VALUE, "ann@lab", "hf"))
    assert learner.open(sealed) is None and voter.open(sealed) == VALUE
    assert VALUE.hex() not in str(sealed)
    released = voter.for_host(VALUE, pem(material.certificate), "j.1", "hf")
    assert learner.from_holder(released, "j.1", "hf") == VALUE
    for attempt_id, name in (("j.2", "hf"), ("j.1", "other")):
        with pytest.raises(KeyUnusable):
            learner.from_holder(released, attempt_id, name)
    with pytest.raises(KeyUnusable):
        voter.from_holder(released, "j.1", "hf")


def test_a_box_that_is_moved_to_another_name_or_user_does_not_open(tmp_path: Path) -> None:
    voter, _ = host(tmp_path / "v", Cluster(), "v", voter=True)
    boxes = voter.seal(VALUE, "ann@lab", "hf")
    for moved in (record(boxes, "other"), record(boxes, user="eve@biz"), record(boxes, user="bob@lab")):
        with pytest.raises(KeyUnusable):
            voter.open(moved)
    with pytest.raises(KeyUnusable):
        voter.open(record({name: "zz" + box for name, box in boxes.items()}))


def test_a_rotation_of_the_authority_seals_it_to_the_next_one(tmp_path: Path) -> None:
    cluster = Cluster()
    voter, material = host(tmp_path / "v", cluster, "v", voter=True)
    before = record(voter.seal(VALUE, "ann@lab", "hf"))
    assert voter.resealed(before) is None
    new = cluster.introduce()
    store_material(tmp_path / "v", HostMaterial(material.key, material.certificate, cluster.bundle))
    boxes = voter.resealed(before)
    assert boxes is not None and set(boxes) == {"authority 1", "authority 2"}
    assert voter.resealed(record(boxes)) is None
    later, _ = host(tmp_path / "w", cluster, "w")
    store_authority(tmp_path / "w", new, ensure_wrap_key(tmp_path / "w" / WRAP_FILE))
    assert later.open(before) is None and later.open(record(boxes)) == VALUE, "with the new key alone"


def test_a_host_alone_has_a_key_of_its_own_and_its_secrets_go_with_it_into_a_cluster(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a")
    alone = SecretBoxes(tmp_path / "a", "a")
    own = record(alone.seal(VALUE, "ann", "hf"), user="ann")
    assert alone.open(own) == VALUE and alone.resealed(own) is None
    cluster = Cluster()
    first, _ = host(tmp_path / "a", cluster, "a", voter=True)
    boxes = first.resealed(own)
    assert boxes is not None and set(boxes) == {"authority 1"}
    other, _ = host(tmp_path / "b", cluster, "b", voter=True)
    assert other.open(own) is None and other.open(record(boxes, user="ann")) == VALUE

from tests.consensus.fixtures import full_disk, make_host, small_disk

__all__ = ["full_disk", "make_host", "small_disk"]

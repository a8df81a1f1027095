"""Which device, transport and meeting place each process takes; devices are pretended ones."""

import os
import socket
from datetime import timedelta

import psutil
import pytest
import torch

from lt_lib.training import distributed


@pytest.fixture
def started(monkeypatch):
    """Set the environment as torchrun does, and pretend CUDA devices; returns the devices that are taken."""
    taken = []
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCHELASTIC_USE_AGENT_STORE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)

    def start(rank, local_rank, size, here, devices, nccl=True):
        names = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": here}
        for name, value in names.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
        return taken

    return start


def test_each_process_takes_a_device_of_its_own_and_nccl_for_it(started):
    for rank in range(8):  # two machines of four devices
        taken = started(rank, rank % 4, 8, 4, devices=4)
        assert distributed._backend() == "cpu:gloo,cuda:nccl"
    assert taken == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(("devices", "nccl"), [(0, True), (2, False)])
def test_without_devices_or_nccl_it_is_gloo(started, devices, nccl):
    taken = started(1, 1, 2, 2, devices, nccl)
    assert distributed._backend() == "gloo"
    assert taken == []


def test_more_processes_than_devices_are_refused_before_they_meet(started, monkeypatch):
    taken = started(0, 0, 3, 3, devices=2)
    monkeypatch.setattr(distributed, "_own_store", lambda *a: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", None)
    with pytest.raises(
        ValueError, match=r"3 processes on a machine with 2 CUDA devices.*at most one a device"
    ):
        distributed.processes().__enter__()
    assert taken == []


@pytest.mark.parametrize("here", [1, 2])
def test_transports_keep_to_this_machine_where_all_processes_do(started, here):
    started(0, 0, 2, here, devices=0)
    before = dict(os.environ)
    with distributed._loopback(2):
        found = {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    assert dict(os.environ) == before
    interfaces = {name for _, name in socket.if_nameindex() if name.startswith("lo")} if here == 2 else {None}
    assert set(found.values()) <= interfaces
    assert len(set(found.values())) == 1


def test_who_names_an_interface_keeps_it(started, monkeypatch):
    started(0, 0, 2, 2, devices=0)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    with distributed._loopback(2):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot hand a socket on")
def test_processes_of_one_machine_meet_on_the_loopback_interface(started, monkeypatch):
    started(0, 0, 1, 1, devices=0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(port))
    store = distributed._own_store(0, 1, timedelta(seconds=60))
    store.set("said", "heard")
    assert store.get("said") == b"heard"
    listening = [c.laddr for c in psutil.Process().net_connections() if c.status == "LISTEN"]
    assert [address.ip for address in listening if address.port == port] == ["127.0.0.1"]


@pytest.mark.parametrize("change", [{"TORCHELASTIC_USE_AGENT_STORE": "True"}, {"LOCAL_WORLD_SIZE": "1"}])
def test_a_meeting_place_of_torchrun_or_of_several_machines_is_left_to_them(started, monkeypatch, change):
    started(0, 0, 2, 2, devices=0)
    for name, value in {"MASTER_PORT": "1", **change}.items():
        monkeypatch.setenv(name, value)
    assert distributed._own_store(0, 2, timedelta(seconds=1)) is None

"""Checkpoints of other makes are read, and what does not fit or would run code is refused."""

import os
from collections import OrderedDict

import pytest
import safetensors.torch
import torch
from torch import nn

from lt_lib.nets.own import load_checkpoint


def small_net(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(1, 4, 3), norm=nn.BatchNorm2d(4), flat=nn.Flatten(), fc=nn.Linear(16, classes)
        )
    )


@pytest.fixture
def state():
    """Weights that a fresh network does not have."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in small_net().state_dict().items()
    }


def loaded_as(state, model):
    return all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module.", "backbone."])
@pytest.mark.parametrize("kind", ["safetensors", "torch", "nested"])
def test_weights_arrive_from_every_form(tmp_path, state, prefix, kind):
    file, named = tmp_path / "net.bin", {prefix + name: value for name, value in state.items()}
    if kind == "safetensors":
        safetensors.torch.save_file(named, file)
    else:
        torch.save(named if kind == "torch" else {"epoch": 3, "state_dict": OrderedDict(named)}, file)
    assert loaded_as(state, load_checkpoint(small_net(), file))


def test_averaged_weights_are_read(tmp_path, state):
    model = small_net()
    model.load_state_dict(state)
    torch.save(torch.optim.swa_utils.AveragedModel(model).state_dict(), tmp_path / "swa.pt")
    torch.save({"epoch": 3, "model_ema": state}, tmp_path / "ema.pt")
    torch.save({"ema": small_net().state_dict(), "model": state}, tmp_path / "both.pt")
    for name in ("swa.pt", "ema.pt", "both.pt"):
        assert loaded_as(state, load_checkpoint(small_net(), tmp_path / name))


def test_values_of_eight_bits_become_the_networks(tmp_path, state):
    small = {n: v.to(torch.float8_e4m3fn) if v.is_floating_point() else v for n, v in state.items()}
    safetensors.torch.save_file(small, tmp_path / "net.bin")
    model = load_checkpoint(small_net(), tmp_path / "net.bin")
    assert loaded_as({n: v.to(state[n].dtype) for n, v in small.items()}, model)


def test_a_wrapped_network_takes_bare_names(tmp_path, state):
    torch.save(state, tmp_path / "net.pt")
    model = load_checkpoint(nn.DataParallel(small_net()), tmp_path / "net.pt")
    assert loaded_as(state, model.module)


def test_old_checkpoints_lack_the_counter_of_batch_norm(tmp_path, state):
    torch.save({n: v for n, v in state.items() if not n.endswith("num_batches_tracked")}, tmp_path / "net.pt")
    assert loaded_as(state, load_checkpoint(small_net(), tmp_path / "net.pt"))


class Shell:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_checkpoint_that_carries_code_runs_none(tmp_path, state, legacy):
    file, mark, model = tmp_path / "net.pt", tmp_path / "ran", small_net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save({**state, "extra": Shell(mark)}, file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match=r"could run code when it is loaded \(it asks for `\w+\.mkdir`\)"):
        load_checkpoint(model, file)
    assert not mark.exists()
    assert loaded_as(before, model)


def test_a_whole_pickled_network_is_refused(tmp_path):
    torch.save(small_net(), tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"torch\.nn\.modules\.container\.Sequential.*save_file"):
        load_checkpoint(small_net(), tmp_path / "net.pt")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("fc.bias"), r"1 of the network's tensors are missing \(`fc.bias` first\)"),
        (lambda s: s.update({"head.w": torch.ones(1)}), r"unknown to the network \(`head.w` first\)"),
        (lambda s: s.update({"fc.bias": torch.ones(9)}), r"`fc.bias`: \(9,\) there, \(3,\) in the network"),
        (lambda s: s["fc.bias"].fill_(float("nan")), "must be finite"),
        (lambda s: s.update({"fc.bias": torch.ones(3, dtype=torch.int8)}), "plain tensor like torch.float32"),
        (lambda s: s.update({"fc.weight": s["fc.weight"].to("meta")}), "found torch.float32 in a sparse, q"),
        (lambda s: s.update({"fc.weight": torch.full((3, 16), 1e300, dtype=torch.float64)}), "be finite"),
        (lambda s: s.update(epoch=3), "found `epoch` of type int among the tensors"),
        (lambda s: s.clear(), "must hold a state dict"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_changes(tmp_path, state, change, words):
    model = small_net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    change(state)
    torch.save(state, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=words):
        load_checkpoint(model, tmp_path / "net.pt")
    assert loaded_as(before, model)


@pytest.mark.parametrize(
    "content", [b"", b"no checkpoint", b"\x10\0\0\0\0\0\0\0{broken", b"PK\x03\x04" + b"\0" * 99]
)
def test_damaged_files_get_one_sentence(tmp_path, content):
    (tmp_path / "net.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"The checkpoint `net\.pt`"):
        load_checkpoint(small_net(), tmp_path / "net.pt")
    with pytest.raises(FileNotFoundError, match="must be an existing file"):
        load_checkpoint(small_net(), tmp_path / "none.pt")


def test_a_cut_file_is_refused(tmp_path, state):
    torch.save(state, tmp_path / "net.pt")
    content = (tmp_path / "net.pt").read_bytes()
    (tmp_path / "net.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="must be a whole file"):
        load_checkpoint(small_net(), tmp_path / "net.pt")

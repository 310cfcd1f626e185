"""One process, one device, chosen before anything can touch another."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from celery_batch import ConfigurationError
from celery_batch.runtime import devices

VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Names of MIG slices: as drivers give them today, and as those before R470 did.
SLICES = (
    "MIG-c7384736-a75d-5afc-978f-d2f1294409fd",
    "MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/1/0",
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which no GPU is hidden; it is restored after the test."""
    monkeypatch.setenv(VISIBLE, "")
    monkeypatch.delenv(VISIBLE)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Give the machine these device files in place of its own."""

    def have(*names: str) -> None:
        for name in names:
            (tmp_path / name).touch()
        monkeypatch.setattr(devices, "Path", lambda _: tmp_path)

    return have


def wake_cuda(monkeypatch: pytest.MonkeyPatch, *, awake: bool) -> None:
    """Have torch imported already, its CUDA side initialised or not."""
    cuda = SimpleNamespace(is_initialized=lambda: awake)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


def test_machine_without_gpus_offers_its_cpu(machine: Callable[..., None]):
    """Without a GPU there is always the CPU."""
    machine("null", "nvidiactl", "nvidia-uvm")

    assert ["cpu"] == devices.discover()


def test_gpus_are_found_by_their_device_files(machine: Callable[..., None]):
    """Every card's file is a device; the driver's control files are none."""
    machine("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm")

    assert ["cuda:0", "cuda:1", "cuda:2"] == devices.discover()


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0,1", ["cuda:0", "cuda:1"]),
        ("3", ["cuda:0"]),
        (" 2 , 0 ,", ["cuda:0", "cuda:1"]),
        ("GPU-8932f937,GPU-4f31a1c2", ["cuda:0", "cuda:1"]),
        (f"{SLICES[0]},{SLICES[1]}", ["cuda:0", "cuda:1"]),
        ("", ["cpu"]),
        ("-1", ["cpu"]),
        ("0,-1,1", ["cuda:0"]),
    ],
)
def test_visible_gpus_are_the_ones_there_are(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[..., None], visible: str, names: list[str]
):
    """Where the environment names GPUs, the files in /dev do not matter; nor what follows -1."""
    machine("nvidia0", "nvidia1", "nvidia2", "nvidia3")
    monkeypatch.setenv(VISIBLE, visible)

    assert names == devices.discover()


def test_pinned_process_sees_its_gpu_alone():
    """The environment shows one GPU, which is then the process's first."""
    assert "cuda:0" == devices.pin(0, ["cuda:3"])
    assert "3" == os.environ[VISIBLE]


@pytest.mark.parametrize(("index", "entry"), [(0, "4"), (1, "6"), (2, "4"), (5, "6")])
def test_processes_share_the_devices_in_turn(
    monkeypatch: pytest.MonkeyPatch, index: int, entry: str
):
    """Process i gets device i modulo n, and names count within what is visible."""
    monkeypatch.setenv(VISIBLE, "4,6")

    assert "cuda:0" == devices.pin(index)
    assert entry == os.environ[VISIBLE]


def test_pinning_by_uuid_keeps_the_uuid(monkeypatch: pytest.MonkeyPatch):
    """A GPU named by its id is pinned by its id."""
    devices.pin(0, ["cuda:GPU-8932f937"])

    assert "GPU-8932f937" == os.environ[VISIBLE]

    monkeypatch.setenv(VISIBLE, "GPU-aaa,GPU-bbb")
    devices.pin(0, ["cuda:1"])

    assert "GPU-bbb" == os.environ[VISIBLE]


@pytest.mark.parametrize("index", [0, 1])
def test_each_process_has_a_mig_slice_of_its_own(monkeypatch: pytest.MonkeyPatch, index: int):
    """Named in the environment or in the settings: CUDA would show the first of them only."""
    monkeypatch.setenv(VISIBLE, ",".join(SLICES))

    assert "cuda:0" == devices.pin(index)
    assert SLICES[index] == os.environ[VISIBLE]

    monkeypatch.delenv(VISIBLE)
    devices.pin(index, [f"cuda:{name}" for name in SLICES])

    assert SLICES[index] == os.environ[VISIBLE]


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_other_devices_leave_the_environment_alone(name: str):
    """What is not a GPU of the driver's needs no pinning."""
    assert name == devices.pin(0, [name])
    assert VISIBLE not in os.environ


def test_nothing_given_is_everything_there_is(machine: Callable[..., None]):
    """Without a choice a process gets its share of what the machine offers."""
    machine("nvidia0", "nvidia1")

    assert "cuda:0" == devices.pin(1)
    assert "1" == os.environ[VISIBLE]


def test_machine_without_gpus_pins_to_its_cpu(machine: Callable[..., None]):
    """On a machine without GPUs every process lives on the CPU."""
    machine()

    assert ["cpu"] * 3 == [devices.pin(index) for index in range(3)]


@pytest.mark.parametrize("name", ["gpu0", "cuda", "cuda:", "CPU", "cuda:0 ", "cpu:1", ""])
def test_names_of_no_device_are_refused(name: str):
    """The message names the setting, the word and some right ones."""
    with pytest.raises(ConfigurationError) as refusal:
        devices.pin(0, [name])

    assert (
        f"batch_devices: {name!r} is no device; write 'cpu', 'cuda:0', 'cuda:1', ..., or a GPU's"
        f" or MIG slice's id as nvidia-smi -L lists it" == str(refusal.value)
    )


def test_gpu_that_cannot_be_seen_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A number beyond the visible GPUs is an error here, not a crash in the driver."""
    monkeypatch.setenv(VISIBLE, "0,1")
    with pytest.raises(ConfigurationError, match=r"no cuda:2: .*='0,1' shows 2 GPUs"):
        devices.pin(0, ["cuda:2"])

    assert "0,1" == os.environ[VISIBLE]


def test_pinning_after_cuda_woke_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Once the driver is awake the environment means nothing; the message says what to move."""
    wake_cuda(monkeypatch, awake=True)
    with pytest.raises(ConfigurationError, match=r"from module level into Model\.load"):
        devices.pin(0, ["cuda:0"])

    assert VISIBLE not in os.environ
    assert "cpu" == devices.pin(0, ["cpu"])


def test_second_worker_of_a_process_is_pinned_as_the_first(monkeypatch: pytest.MonkeyPatch):
    """Its GPU is the one that the process sees; another one would come too late."""
    assert "cuda:0" == devices.pin(0, ["cuda:1"])
    wake_cuda(monkeypatch, awake=True)

    assert "cuda:0" == devices.pin(0, ["cuda:0"])
    assert "1" == os.environ[VISIBLE]


def test_importing_torch_too_early_does_no_harm_by_itself(monkeypatch: pytest.MonkeyPatch):
    """What counts is whether CUDA is awake."""
    wake_cuda(monkeypatch, awake=False)

    assert "cuda:0" == devices.pin(0, ["cuda:1"])


def test_choosing_a_device_wakes_nothing(in_python: Callable[..., str]):
    """Neither looking for devices nor pinning imports torch."""
    loaded = in_python(
        "import sys; from celery_batch.runtime import devices; devices.discover();"
        "devices.pin(0, ['cuda:0']); print('torch' in sys.modules)"
    )

    assert "False" == loaded


@pytest.mark.parametrize(
    ("files", "names", "doubt"),
    [
        ((), ["cuda:0"], "no GPU can be seen on this machine: it has no /dev/nvidia0"),
        ((), ["cpu", "mps"], ""),
        (("nvidia0",), ["cuda:0", "cuda:2"], "there is no GPU 2: this machine shows 1"),
        (("nvidia3",), ["cuda:0"], ""),
        (("nvidia0",), ["cuda:GPU-8932f937"], ""),
        (("dxg",), ["cuda:0", "cuda:1"], ""),
    ],
    ids=["none", "not wanted", "too few", "in a container", "by its id", "WSL"],
)
def test_gpus_that_can_hardly_be_there_are_doubted(machine, files, names, doubt):
    """What the machine's files speak against is said; where drivers have none, nothing is."""
    machine("null", *files)

    assert devices.why_doubtful(names).startswith(doubt)
    assert bool(doubt) == bool(devices.why_doubtful(names))


def test_numbers_are_not_doubted_where_the_user_has_chosen(machine, monkeypatch):
    """They count the entries of CUDA_VISIBLE_DEVICES; without any GPU that helps nothing."""
    machine("null")
    monkeypatch.setenv(VISIBLE, "4,6")
    without = devices.why_doubtful(["cuda:1"])
    machine("nvidia4")

    assert without.startswith("no GPU can be seen")
    assert "" == devices.why_doubtful(["cuda:1"])


@pytest.mark.parametrize(
    ("cuda", "is_available", "is_refused"),
    [("12.4", False, True), ("12.4", True, False), (None, False, False)],
    ids=["no driver", "a GPU", "a torch for CPUs"],
)
def test_gpu_that_torch_cannot_use_is_refused(monkeypatch, cuda, is_available, is_refused):
    """A torch built for GPUs knows; another library may use the GPU beside a torch that is not."""
    version = SimpleNamespace(cuda=cuda, hip=None)
    torch = SimpleNamespace(
        version=version, cuda=SimpleNamespace(is_available=lambda: is_available)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    refusal = pytest.raises(ConfigurationError, match="GPUs: torch finds no GPU where CUDA_VISIBLE")
    with refusal if is_refused else nullcontext():
        devices.require_seen("cuda:0", "GPUs")

    devices.require_seen("cpu", "GPUs")

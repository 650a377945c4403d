"""What only worker processes can get wrong: dying, being left behind, and finding code and data."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

import toys
from headwater.engines.base import Done
from headwater.engines.jobs import Job, Ref
from headwater.engines.pool import Pool
from headwater.engines.workers.shared_memory import PREFIX, SharedFiles, read_context, remove_stale, write_context
from headwater.errors import ConfigError, OutputError, TaskError
from headwater.tasks.task import TaskContext, task
from headwater.training.experiment import Experiment
from headwater.training.loop import train

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test by its name
PATIENCE = 600  # seconds; processes start slowly on a busy machine


@task("train")
def mortal(ctx: TaskContext, marks: str, deaths: int) -> float:
    """Kills the worker that carries it out, so many times; leaves a mark each time."""
    folder = Path(marks)
    if len(list(folder.iterdir())) < deaths:
        (folder / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return float(ctx.rng.random())


@task("train")
def where(ctx: TaskContext) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "omp": os.environ["OMP_NUM_THREADS"],
        "allocator": os.environ["MALLOC_TOP_PAD_"],
        "path": list(sys.path),
    }


@task("train")
def own_rows(ctx: TaskContext) -> torch.Tensor:
    assert ctx.data is not None
    return ctx.data.x


@task("train")
def marked(ctx: TaskContext, mark: str) -> float:
    Path(mark).touch()
    return 1.0


@task("train")
def patient(ctx: TaskContext, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@task("train")
def meeting(ctx: TaskContext, marks: str, count: int) -> float:
    """Ends when as many of these have begun."""
    folder = Path(marks)
    (folder / str(os.getpid())).touch()
    until(lambda: len(list(folder.iterdir())) == count, f"{count} workers at once")
    return 1.0


def job(name: str, function: Callable[..., Any], **inputs: Any) -> Job:
    return Job(name, function, "c0", "c0", inputs, (1, name, 0, "c0"))


def at(name: str) -> Ref:
    return Ref(name, "c0")


def folders(pid: int) -> set[Path]:
    """Directories of a process's pools in shared memory and in the temporary directory."""
    roots = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    return {folder for root in roots if root.is_dir() for folder in root.glob(f"{PREFIX}{pid}-*")}


def until(so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def pool(opened: Any, experiment: Experiment) -> Iterator[Pool]:
    made: Pool = opened("pool")
    made.watch = None
    made.start(experiment.context())
    yield made
    made.start(experiment.context())  # whatever a test did, the next finds it in order


# -- dying


@pytest.mark.thorough
def test_a_worker_that_dies_is_replaced_and_its_job_repeated(
    pool: Pool, tmp_path: Path, experiment: Experiment
) -> None:
    pool.submit(job("x", mortal, marks=str(tmp_path), deaths=0))
    undisturbed = pool.read(at("x"))
    pool.start(experiment.context())
    pool.submit(job("x", mortal, marks=str(tmp_path), deaths=1))
    assert pool.read(at("x")) == undisturbed
    assert len(list(tmp_path.iterdir())) == 1
    assert [done.name for done in pool.done] == ["x"]


@pytest.mark.thorough
def test_a_task_that_always_kills_its_worker(pool: Pool, tmp_path: Path, experiment: Experiment) -> None:
    pool.submit(job("x", mortal, marks=str(tmp_path), deaths=99))
    with pytest.raises(
        TaskError, match=r"mortal at c0 \(home c0\) failed: a worker process died over it 3 times"
    ) as told:
        pool.read(at("x"))
    assert "the last by signal SIGKILL; memory may be short" in str(told.value)
    assert len(list(tmp_path.iterdir())) == 3
    pool.start(experiment.context())
    pool.submit(job("x", patient, seconds=0.0))
    assert pool.read(at("x")) == 0.0


def test_workers_killed_in_the_middle_of_a_run_change_nothing(pool: Pool, experiment: Experiment) -> None:
    expected = train(experiment).result["model_sha256"]
    killed: list[int] = []

    def kill(event: Any) -> None:
        if event.kind == "task" and event.phase == "train" and event.done >= 2 and not killed:
            for worker in list(pool._workers.values()):
                worker.process.kill()
                killed.append(worker.process.pid)

    assert train(experiment, engine=pool, watch=kill).result["model_sha256"] == expected
    assert len(killed) == 2
    assert not any(worker.process.pid in killed for worker in pool._workers.values())


@pytest.mark.thorough
def test_workers_that_cannot_start_are_not_started_for_ever(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    pool = Pool(1, threads=2)
    try:
        pool.start(experiment.context())
        until(lambda: pool._error is not None, "the pool to give up")
        with pytest.raises(TaskError, match="worker processes end with exit status 1 before they begin"):
            pool.submit(job("x", where))
        monkeypatch.undo()
        pool.start(experiment.context())
        pool.submit(job("x", where))
        assert (pool.read(at("x"))["threads"], pool.read(at("x"))["omp"]) == (2, "2")
    finally:
        pool.close()


def test_ctrl_c_is_not_for_workers(pool: Pool) -> None:
    pool.submit(job("a", where))
    pid = pool.read(at("a"))["pid"]
    pool.submit(job("b", patient, seconds=0.2))
    pool.submit(job("c", patient, seconds=0.2))
    os.kill(pid, signal.SIGINT)
    assert pool.read(at("b")) == pool.read(at("c")) == 0.2
    assert alive(pid)
    assert os.getpgid(pid) != os.getpgid(0)


# -- what workers are


def test_workers_have_their_threads_allocator_and_the_same_path(pool: Pool) -> None:
    pool.submit(job("x", where))
    found = pool.read(at("x"))
    assert (found["threads"], found["omp"]) == (1, "1")
    assert int(found["allocator"]) > 0
    own = list(dict.fromkeys(path or os.getcwd() for path in sys.path))  # an interpreter takes each once
    assert found["path"][: len(own)] == own


def test_work_begins_while_more_is_submitted(pool: Pool, tmp_path: Path) -> None:
    """Nobody asks for anything, and still all jobs get done."""
    for i in range(6):
        pool.submit(job(f"j{i}", marked, mark=str(tmp_path / str(i))))
    until(lambda: len(list(tmp_path.iterdir())) == 6, "six marks")


def test_reports_are_passed_on_by_the_thread_that_waits(pool: Pool, tmp_path: Path) -> None:
    threads: set[int] = set()
    workers: set[int] = set()

    def note(done: Done) -> None:
        threads.add(threading.get_ident())
        workers.add(done.worker)

    pool.watch = note
    for i in range(2):
        pool.submit(job(f"j{i}", meeting, marks=str(tmp_path), count=2))
    for i in range(2, 8):
        pool.submit(job(f"j{i}", patient, seconds=0.05))
    assert pool.done == []
    pool.finish([f"j{i}" for i in range(8)])
    assert threads == {threading.get_ident()}
    assert workers == {0, 1}


def test_a_model_that_cannot_be_sent_is_refused(pool: Pool) -> None:
    lock = threading.Lock()

    def builder() -> torch.nn.Module:
        with lock:
            return torch.nn.Linear(4, 3)

    context = toys.tiny("fedavg", model=builder).context()
    with pytest.raises(ConfigError, match=r"the model cannot be sent to worker processes .*engine.name = 'inline'"):
        pool.start(context)


# -- shared memory


def test_the_data_is_written_once_and_mapped(experiment: Experiment) -> None:
    files = SharedFiles.create()
    try:
        path = write_context(experiment.context(), files, "context")
        split = experiment.split
        parts = [split.train, split.validation, split.test]
        data = sum(part.x.nbytes + part.y.nbytes for part in parts) + split.reference.nbytes
        assert path.stat().st_size < data + 8_000
        found = read_context(path)
        assert torch.equal(found.split.train.x, split.train.x)
        assert found.split.train.x.stride() == split.train.x.stride()
        assert found.rows.keys() == experiment.rows.keys()
        assert found.split.train.x.data_ptr() % 64 == 0
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
        assert mapped
    finally:
        files.remove()


def test_files_go_with_the_last_that_needs_them(pool: Pool) -> None:
    def held() -> list[str]:
        assert pool._files is not None
        return sorted(path.name for folder in pool._files.folders for path in folder.iterdir() if "value" in path.name)

    pool.submit(job("a", patient, seconds=0.1))
    pool.move(at("a"), "s0", "b")
    pool.submit(Job("c", patient, "s0", "s0", {"seconds": Ref("b", "s0")}, (1, "c", 0, "s0")))
    pool.drop(["a"])
    pool.finish("abc")
    assert len(held()) == 2  # b is the same file as a
    pool.drop(["b"])
    assert len(held()) == 1
    assert pool.read(Ref("c", "s0")) == 0.1
    pool.drop(["c"])
    assert held() == []


def test_what_is_dropped_early_leaves_no_file(pool: Pool) -> None:
    """Before it was there, while a choice held it, and when the choice itself was dropped first."""
    pool.submit(job("a", patient, seconds=0.1))
    pool.submit(job("b", patient, seconds=0.1))
    pool.either(at("a"), at("b"), "c")
    pool.submit(job("d", patient, seconds=at("c")))
    pool.drop(["a", "b", "c"])
    assert pool.read(at("d")) == 0.1
    pool.finish("abc")
    assert pool._files is not None
    files = [path.name for folder in pool._files.folders for path in folder.iterdir() if "value" in path.name]
    assert len(files) == 1  # d's own
    pool.drop(["d"])
    pool.finish("d")
    assert not [path for folder in pool._files.folders for path in folder.iterdir() if "value" in path.name]


def test_nothing_is_left_after_close(experiment: Experiment) -> None:
    before = folders(os.getpid())
    pool = Pool(1)
    pool.start(experiment.context())
    pool.submit(job("x", where))
    pool.submit(job("rows", own_rows))
    pid, rows = pool.read(at("x"))["pid"], pool.read(at("rows"))
    mine = folders(os.getpid()) - before
    assert mine
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in mine)  # nobody else's business
    pool.submit(job("y", patient, seconds=60.0))
    pool.close()
    assert not folders(os.getpid()) & mine
    until(lambda: not alive(pid), "the worker to end")
    assert torch.equal(rows, experiment.split.train.take(experiment.rows["c0"]).x)  # what was read stays


def test_stale_directories_are_swept_and_live_ones_are_not(tmp_path: Path) -> None:
    stale, other = tmp_path / f"{PREFIX}999999-ab_c1", tmp_path / f"{PREFIX}results-of-may"
    for folder in (stale, other):
        folder.mkdir()
        (folder / "value-1").write_bytes(b"x" * 10)
    files = SharedFiles.create()
    try:
        for folder in files.folders:
            remove_stale(folder.parent)
            assert folder.is_dir()
        remove_stale(tmp_path)
        assert not stale.exists()
        assert (other / "value-1").exists()
    finally:
        files.remove()
    assert not any(folder.exists() for folder in files.folders)


def test_values_spill_to_the_next_directory_when_the_first_is_full(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (first / "v").symlink_to("/dev/full")
    files = SharedFiles([first, second])
    assert files.write("v", torch.ones(5000)) == second / "v"
    assert not (first / "v").exists()
    (first / "w").symlink_to("/dev/full")
    (second / "w").symlink_to("/dev/full")
    with pytest.raises(OutputError, match=re.escape(f"no room left for values in {tmp_path} and {tmp_path}; make")):
        files.write("w", torch.ones(5000))


# -- scripts: nothing is guarded, everything is defined in the script itself

SCRIPT = """
import torch, headwater as hw
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
    def forward(self, x):
        return helper(self.layer(x))
def helper(x):
    return x * 2
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(80, 4, generator=generator), torch.arange(80) % 3
mine = hw.Data(x, y, x[:20], y[:20])
shas = {hw.run("fedhead", data=mine, model=lambda: Net(), clients=4, rounds=1, local__epochs=1, sector__epochs=1,
               engine=engine, workers=1).result["model_sha256"] for engine in ("inline", "pool")}
print("runs that differ:", len(shas) - 1)
"""
LONG = """
import os, signal, headwater as hw
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background would not have
def tell(event):
    if event.kind == "start":
        print("working", os.getpid(), flush=True)
hw.run("local", clients=4, rounds=100000, eval_every=100000, local__epochs=1, engine="pool", workers=1, watch=tell)
"""


def python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], text=True, start_new_session=True, **options)


@pytest.mark.parametrize("way", ["file", "stdin"])
@pytest.mark.thorough
def test_an_unguarded_script_runs(way: str, tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    arguments = (str(script),) if way == "file" else ("-",)
    process = python(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
    output, errors = process.communicate(SCRIPT if way == "stdin" else None, timeout=PATIENCE)
    assert (process.returncode, output) == (0, "runs that differ: 0\n"), errors


@pytest.mark.parametrize(
    "blow",
    [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)],
    ids=lambda blow: blow.name,
)
@pytest.mark.thorough
def test_nothing_is_left_of_a_process_that_was_ended(blow: signal.Signals, tmp_path: Path) -> None:
    process = python("-c", LONG, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"working {process.pid}\n"
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert folders(process.pid)
        assert len(workers) == 1
        process.send_signal(blow)
        process.wait(PATIENCE)
        until(lambda: not any(alive(int(pid)) for pid in workers), "the workers to end")
        until(lambda: not folders(process.pid), "directories to go")
    finally:
        process.kill()
        process.communicate()

"""The pipelining model: every dependency holds, nothing is lost by it, and where it wins."""

from __future__ import annotations

import doctest
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.theory import pipelining
from headwater.theory.pipelining import (
    ALWAYS,
    PipelineSetting,
    Presence,
    ScheduledJob,
    Timeline,
    compare,
    scattered,
    simulate,
)


def test_examples() -> None:
    assert doctest.testmod(pipelining).failed == 0


@st.composite
def any_setting(draw: st.DrawFn, there: bool = False) -> PipelineSetting:
    """Any setting with whole numbers as times, so that all sums are exact."""
    clients = draw(st.integers(1, 7))
    times = st.integers(1, 6).map(float)
    presence = None
    if not there:
        stay = st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 20))
        stays = draw(st.lists(stay, min_size=clients, max_size=clients))
        presence = tuple(Presence(float(on), float(on + off), float(phase)) for on, off, phase in stays)
    return PipelineSetting(
        clients=clients,
        rounds=draw(st.integers(1, 6)),
        work=draw(times if there else st.lists(times, min_size=clients, max_size=clients).map(tuple)),
        server=float(draw(st.integers(0, 6))),
        cohorts=draw(st.integers(1, 4)),
        active=draw(st.none() | st.integers(1, clients)),
        presence=presence,
        away=draw(st.sampled_from(["finish", "pause"])),
        forward=float(draw(st.integers(0, 2))),
        history=draw(st.integers(1, 3)),
        lookahead=draw(st.none() | st.integers(0, 2)),
        seed=draw(st.integers(0, 99)),
    )


class TestPresence:
    def test_by_hand(self) -> None:
        """There for 3 of every 10 from −4 on: [−4, −1), [6, 9), [16, 19)."""
        one = Presence(3.0, 10.0, 4.0)
        assert [time for time in range(20) if one.there(time)] == [6, 7, 8, 16, 17, 18]
        assert (one.begin(0), one.begin(6), one.begin(8.5), one.begin(9)) == (6, 6, 8.5, 16)
        assert one.end(8.0, 5.0, "finish") == 13
        assert one.end(8.0, 1.0, "pause") == 9  # just fits
        assert one.end(8.0, 3.0, "pause") == 18
        assert one.end(8.0, 4.0, "pause") == 19  # uses up the second stay and needs no third
        assert one.end(8.0, 5.0, "pause") == 27

    @settings(max_examples=40)
    @given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 30), st.integers(0, 50), st.integers(1, 30))
    def test_pausing_against_counting(self, on: int, off: int, phase: int, time: int, work: int) -> None:
        """Whole moments, one by one."""
        one = Presence(float(on), float(on + off), float(phase))
        moments = (moment for moment in range(time, 10_000) if (moment + phase) % (on + off) < on)
        worked = [next(moments) for _ in range(work)]
        assert one.begin(time) == worked[0]
        assert one.end(worked[0], work, "pause") == worked[-1] + 1

    @settings(max_examples=40)
    @given(st.floats(0.1, 7), st.floats(0.05, 1), st.floats(0, 7), st.floats(0, 300), st.floats(0.01, 30))
    def test_odd_numbers_stay_near(self, period: float, share: float, phase: float, time: float, work: float) -> None:
        """Whatever is rounded, a start lies within a period and an end within the stays that the work needs."""
        one = Presence(share * period, period, phase)
        start = one.begin(time)
        assert time <= start <= time + period - one.on + 1e-9
        end = one.end(start, work, "pause")
        assert start + work - 1e-9 <= end <= start + (work / one.on + 1) * period + 1e-9

    def test_scattered(self) -> None:
        found = scattered(50, 0.25, 8.0, seed=3)
        assert {(one.on, one.period) for one in found} == {(2.0, 8.0)}
        assert len({one.phase for one in found}) == 50
        assert found == scattered(50, 0.25, 8.0, seed=3) != scattered(50, 0.25, 8.0, seed=4)
        assert scattered(3, 1.0, 8.0, seed=3) == (ALWAYS,) * 3


class TestDealing:
    @settings(max_examples=40)
    @given(any_setting())
    def test_every_active_client_is_in_one_cohort(self, setting: PipelineSetting) -> None:
        for number in range(1, setting.rounds + 1):
            cohorts = setting.deal(number)
            dealt = [client for cohort in cohorts for client in cohort]
            sizes = [len(cohort) for cohort in cohorts]
            assert len(set(dealt)) == len(dealt) == (setting.active or setting.clients)
            assert len(cohorts) == setting.cohorts
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1

    def test_cohorts_change_from_round_to_round(self) -> None:
        setting = PipelineSetting(12, 1, 1.0, 1.0, active=8)
        assert len({setting.deal(number) for number in range(1, 9)}) == 8

    def test_e10_members_of_the_teacher(self) -> None:
        """K·R, fewer while there are not that many rounds; FedDF has all active clients."""
        setting = PipelineSetting(20, 5, 1.0, 1.0, cohorts=4, active=8, history=3)
        assert [setting.members("pipelined", number) for number in (1, 2, 3, 4)] == [4, 8, 12, 12]
        assert setting.members("feddf", 1) == 8
        costly = compare(replace(setting, history=1, forward=0.5))
        assert {name: line.period for name, line in costly.items()} == {
            "sequential": 1 + 1 + 2,
            "pipelined": 1 + 1 + 2,
            "feddf": 1 + 1 + 4,
        }


def dependencies(line: Timeline) -> None:
    """What a time line must keep, read off its jobs alone."""
    setting = line.setting
    presence = setting.presence or (ALWAYS,) * setting.clients
    averages = {(job.round, job.cohort): job for job in line.jobs if job.what == "aggregate"}
    distilled = {job.round: job for job in line.jobs if job.what == "distill"}
    trained = [job for job in line.jobs if job.what == "train"]
    cohorts = 1 if line.schedule == "feddf" else setting.cohorts
    assert set(distilled) == set(range(1, setting.rounds + 1))
    assert set(averages) == {(number, k) for number in distilled for k in range(cohorts)}
    for number in distilled:  # everybody who was dealt a job did it once, in its cohort
        jobs = Counter((job.cohort, job.client) for job in trained if job.round == number)
        assert all(times == 1 for times in jobs.values())
        dealt = {(k * (cohorts > 1), client) for k, cohort in enumerate(setting.deal(number)) for client in cohort}
        assert set(jobs) == dealt
    for job in trained:
        assert job.client is not None
        assert job.end <= averages[job.round, job.cohort].start
        work = setting.works[job.client]
        assert job.end - job.start == work if setting.away == "finish" else job.end - job.start >= work
        assert presence[job.client].there(job.start)
        if job.round > 1:
            waits = line.schedule != "pipelined" or job.cohort == 0
            assert job.start >= averages[job.round - 1, job.cohort].end
            assert not waits or job.start >= distilled[job.round - 1].end
    for number, job in distilled.items():
        assert job.start == max(averages[number, k].end for k in range(cohorts))
        assert job.end - job.start == setting.server + setting.forward * setting.members(line.schedule, number)
    for who in {job.who for job in trained}:
        own = [job for job in trained if job.who == who]
        assert all(before.end <= after.start for before, after in pairwise(own))
    distillations = list(distilled.values())
    assert all(before.end <= after.start for before, after in pairwise(distillations))


class TestTimelines:
    @settings(max_examples=40)
    @given(any_setting())
    def test_dependencies_hold(self, setting: PipelineSetting) -> None:
        for line in compare(setting).values():
            dependencies(line)

    @settings(max_examples=40)
    @given(any_setting())
    def test_nobody_waits_without_a_reason(self, setting: PipelineSetting) -> None:
        """Every job starts as soon as model, client and presence allow, so waiting is not what makes others slow."""
        line = simulate(replace(setting, lookahead=None), "pipelined")
        averages = {(job.round, job.cohort): job.end for job in line.jobs if job.what == "aggregate"}
        presence = setting.presence or (ALWAYS,) * setting.clients
        last: dict[int, float] = {}
        for job in line.jobs:
            if job.client is not None:
                source = averages.get((job.round - 1, job.cohort), 0.0)
                model = source if job.cohort else (line.round_ends[job.round - 2] if job.round > 1 else 0.0)
                assert job.start == presence[job.client].begin(max(model, last.get(job.client, 0.0)))
                last[job.client] = job.end

    @settings(max_examples=40)
    @given(any_setting())
    def test_pipelined_is_never_later_than_sequential(self, setting: PipelineSetting) -> None:
        found = compare(setting)
        pairs = zip(found["pipelined"].jobs, found["sequential"].jobs, strict=True)
        for early, late in pairs:  # the same jobs in the same order
            assert (early.what, early.round, early.cohort, early.client) == (
                late.what,
                late.round,
                late.cohort,
                late.client,
            )
            assert early.start <= late.start
            assert early.end <= late.end
        assert found["pipelined"].period <= found["sequential"].period
        assert found["sequential"].ahead == found["feddf"].ahead == 0

    @settings(max_examples=40)
    @given(any_setting())
    def test_looking_further_ahead_never_loses(self, setting: PipelineSetting) -> None:
        """From waiting, with 0, to no limit; training is never further ahead than allowed."""
        lines = [simulate(replace(setting, lookahead=ahead), "pipelined") for ahead in (0, 1, 2, 99, None)]
        assert lines[0].jobs == simulate(setting, "sequential").jobs
        assert lines[-2].jobs == lines[-1].jobs
        assert all(further.makespan <= line.makespan for line, further in pairwise(lines))
        assert all(line.ahead <= limit for line, limit in zip(lines, (0, 1, 2, 99), strict=False))

    @settings(max_examples=40)
    @given(any_setting())
    def test_one_cohort_pipelined_is_feddf(self, setting: PipelineSetting) -> None:
        found = compare(replace(setting, cohorts=1, forward=0.0))
        assert found["pipelined"].jobs == found["feddf"].jobs == found["sequential"].jobs

    @settings(max_examples=40)
    @given(any_setting())
    def test_sequential_takes_the_time_of_feddf_when_teachers_cost_nothing(self, setting: PipelineSetting) -> None:
        found = compare(replace(setting, forward=0.0))
        assert found["sequential"].round_ends == found["feddf"].round_ends

    @settings(max_examples=40)
    @given(any_setting(there=True))
    def test_always_there_means_c_plus_s_under_every_schedule(self, setting: PipelineSetting) -> None:
        setting = replace(setting, forward=0.0)
        for line in compare(setting).values():
            assert isinstance(setting.work, float)
            period = setting.work + setting.server
            assert line.round_ends == tuple(period * number for number in range(1, setting.rounds + 1))
            assert line.period == period

    @settings(max_examples=40)
    @given(any_setting())
    def test_model_0_is_the_critical_chain(self, setting: PipelineSetting) -> None:
        """No schedule gets below training and distilling in turn."""
        shortest = min(setting.works) + setting.server
        for line in compare(setting).values():
            assert all(after - before >= shortest for before, after in pairwise((0.0, *line.round_ends)))

    @pytest.mark.parametrize("away", ["finish", "pause"])
    @pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
    def test_scarce_clients_make_pipelining_shorter(self, share: float, away: pipelining.Away) -> None:
        for seed in range(10):
            there = scattered(20, share, 10.0, seed)
            found = compare(PipelineSetting(20, 30, 1.0, 1.0, 4, 8, there, away, seed=seed))
            assert found["pipelined"].makespan < found["sequential"].makespan

    def test_slow_clients_do_as_well(self) -> None:
        """A client ten times slower is in cohort 0 now and then only; elsewhere its work overlaps distillation."""
        found = compare(PipelineSetting(8, 40, (10.0, *([1.0] * 7)), 9.0))
        assert found["pipelined"].period < found["sequential"].period == 19

    def test_by_hand(self) -> None:
        """Two clients, two cohorts, c = 2, s = 3; client 1 comes at 4, 10, 16 ... for 1 and finishes what it began.

        Client 1 trains model 0 and client 0 model 1, in both rounds. Round 1: client 0 is done at 2, client 1 at
        4 + 2 = 6, distilled at 9. Model 1 goes on at 2; model 0 has to wait for 9 and then for its client, until 10.
        """
        away = Presence(1.0, 6.0, 2.0)
        setting = PipelineSetting(2, 2, 2.0, 3.0, cohorts=2, presence=(ALWAYS, away), seed=0)
        assert setting.deal(1) == ((1,), (0,))
        assert setting.deal(2) == ((1,), (0,))
        jobs = simulate(setting, "pipelined").jobs
        assert [job for job in jobs if job.what != "aggregate"] == [
            ScheduledJob("train", 1, 0, 4, 6, 1),
            ScheduledJob("train", 1, 1, 0, 2, 0),
            ScheduledJob("distill", 1, 0, 6, 9),
            ScheduledJob("train", 2, 0, 10, 12, 1),
            ScheduledJob("train", 2, 1, 2, 4, 0),  # long before the first distillation
            ScheduledJob("distill", 2, 0, 12, 15),
        ]
        assert [job.start for job in simulate(setting, "sequential").jobs if job.client == 0] == [0, 9]
        line = simulate(setting, "pipelined")
        assert (line.makespan, line.period, line.ahead) == (15, 6, 1)
        assert simulate(replace(setting, lookahead=1), "pipelined").jobs == jobs  # one round is all it was ahead
        assert {job.who for job in jobs} == {"server", "c0", "c1"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: PipelineSetting(0, 1, 1.0, 1.0), "clients must be 1 or more, got 0"),
        (lambda: PipelineSetting(2, 1, 1.0, 1.0, cohorts=0), "cohorts must be 1 or more, got 0"),
        (lambda: PipelineSetting(2, 1, 1.0, 1.0, active=3), "active must be from 1 to the 2 clients there are, got 3"),
        (lambda: PipelineSetting(2, 1, (1.0,), 1.0), "work must be given for each of 2 clients or once, got 1"),
        (lambda: PipelineSetting(2, 1, 1.0, 1.0, presence=(ALWAYS,)), "presence must be given for each of 2 clients"),
        (lambda: PipelineSetting(2, 1, (1.0, 0.0), 1.0), "work must take a time above 0, got 0.0 to 1.0"),
        (lambda: PipelineSetting(2, 1, 1.0, -1.0), "server must be a time of 0 or more, got -1.0"),
        (lambda: PipelineSetting(2, 1, 1.0, 1.0, away="stop"), 'away must be "finish" or "pause", got \'stop\''),  # type: ignore[arg-type]
        (lambda: PipelineSetting(2, 1, 1.0, 1.0, lookahead=-1), "lookahead must be 0 rounds or more, or None, got -1"),
        (lambda: Presence(0.0, 5.0), "more than 0 and at most all of its period, got 0.0 of 5.0"),
        (lambda: Presence(6.0, 5.0), "got 6.0 of 5.0"),
        (lambda: scattered(3, 0.0, 5.0, 0), "must be above 0 and at most 1, got 0.0"),
        (lambda: simulate(PipelineSetting(2, 1, 1.0, 1.0), "fast"), "one of sequential, pipelined, feddf, got 'fast'"),  # type: ignore[arg-type]
    ],
)
def test_refuses(call, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=said):
        call()

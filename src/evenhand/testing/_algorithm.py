"""The laws of an :class:`evenhand.types.Algorithm`, each as a check."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evenhand import rounds as protocol
from evenhand import tree
from evenhand._jaxpr import programs
from evenhand._paths import named_path
from evenhand._platform import check_process
from evenhand.aggregators import reduce_uploads
from evenhand.communication import compressed
from evenhand.data import FederatedDataset
from evenhand.errors import EvenhandError
from evenhand.network.in_process import federation, states_of
from evenhand.network.terms import check_deployable
from evenhand.rounds import PerExample
from evenhand.simulation import Job, twin
from evenhand.simulation.program import Program, Rows
from evenhand.streams import keys_of
from evenhand.systems import Systems, bound
from evenhand.testing._check import (
    Check,
    Subject,
    are_close,
    are_coarse,
    are_equal,
    check_all,
    check_close,
    check_same_form,
    checks_of,
    grow_with_parameters,
    is_random,
    makes_keys,
    may_be_assumed,
    numbers,
    rounding,
    toy_data,
)
from evenhand.testing._uploads import check_cohorts, check_slots, promised_noise, reads_weights
from evenhand.text import counted
from evenhand.types import (
    Algorithm,
    Array,
    Attack,
    Params,
    PyTree,
    Upload,
)

# --- the laws -------------------------------------------------------------------------------------------------


_NETWORK_TOLERANCE = 1e-6
_APART = 1e-4
"""Above what rounding does to the work of one round, in float32."""
_SPARE = 3
"""Rows by which a program is made for larger clients than there are."""
_LATER = (0, 1, 10)
"""Rounds in which stragglers are compared: steps may be of length 0 in the first."""
_SHIFT = 2.0**-6
"""What is added to all parameters."""
_SENDERS = 4
"""Clients whose uploads are compared where parameters have grown."""


def check_algorithm(
    algorithm: Algorithm,
    data: FederatedDataset | None = None,
    *,
    rounds: int = 3,
    cohort: int = 4,
    systems: Systems | None = None,
    attack: Attack | None = None,
    lanes: tuple[int, ...] = (3,),
    devices: tuple[int, ...] = (1,),
    tolerance: float = 1e-5,
    continues: bool = False,
) -> None:
    """Checks that a method obeys the laws every method must obey.

    * The global, personal and adapted parameters have the structure, shapes and dtypes of the model's; adapted ones are
      finite.
    * A round keeps the structure, shapes and dtypes of every state.
    * A client's work, and how it adapts, depend on its own rows only: corrupting all others changes nothing.
    * Padding does not count: with a capacity three rows above the largest client's size, the results are the same.  Not
      checked are attacks, a single client, states per example, and work that draws other numbers for other capacities.
    * Randomness comes from the keys that are passed in, a message or a state.  Where its key has no effect, a client's
      work that depends on the order of its examples makes no key of its own, nor does a server that moves the model
      without any upload.
      Another key gives another model if an aggregator has a ``release``.
    * With ``partial_work=True``, a straggler whose ``effort`` has fewer steps does other work than one with all steps,
      in the first round or, if its steps have length 0 there, a later one; not checked where the effort may be the one
      that is assumed, a step for each example.  Of uploads with one size of number, such as signs, work must only read
      the progress.
    * A cohort, also one among the clients that are present, holds clients that exist, and none twice unless the
      sampling ``repeats``; ``systems`` only take clients and shares of their work away.
    * A client's weight, if read, is the one of the method's sampling, up to a factor, or depends on more than its size.
    * Uploads are finite, also that of a client with a single example.
    * After all rounds, the model of some client has changed, and so has the state of one if states begin as 0.  With
      ``continues=True``, work or reports read the state, and no part of it is left unread.
    * Uploads are differences, where there are several clients: with a constant added to all parameters of the model, no
      upload of a client without examples grows by it; nor, as a whole, that of one with a single example, if it is not
      finite without any, nor, times their sizes, those of all.
    * Empty slots have no vote: the direction with some slots filled is that of these uploads alone.
    * Clients outside the cohort, and those that drop out of it, keep their state.
    * The compiled engine and the plain loop agree, for every number of lanes and devices.
    * Masks of secure sums, which are drawn in all other checks, change no number.
    * A network (:func:`evenhand.network.local`) gives the same numbers to ``1e-6``, or refuses the method.
    * The same seed gives the same bits; another seed gives different numbers, if anything is drawn at all.
    * Arguments are not modified.

    Args:
      algorithm: what is checked.
      data: clients that fit its model; None: :func:`toy_data`, for methods over :func:`toy_model`.
      rounds: the number of rounds to run.
      cohort: clients per round, fewer than in the data.
      systems: stragglers and dropouts to run under; None: none.
      attack: what malicious clients do; None: nobody is malicious.
      lanes: numbers of lanes to run with; the plain loop is as good as one lane.
      devices: numbers of devices to run with, each with all the lanes.
      tolerance: relative difference allowed between two orders of summation; for parameters in half precision, four
        units of their rounding, if that is more.
      continues: whether clients continue from the state that they kept, as with a control variate or in Ditto; False:
        not checked, as personal models may also be trained anew in each round.

    Raises:
      AssertionError: a law does not hold; the message says which.

    Example:
      >>> import evenhand as eh
      >>> model = eh.testing.toy_model()
      >>> method = eh.algorithms.fedavg(eh.local.sgd(model, 0.1, epochs=1, batch_size=4))
      >>> check_algorithm(method)
    """
    check_all(
        algorithm_checks(
            algorithm,
            data,
            rounds=rounds,
            cohort=cohort,
            systems=systems,
            attack=attack,
            lanes=lanes,
            devices=devices,
            tolerance=tolerance,
            continues=continues,
        )
    )


def algorithm_checks(
    algorithm: Algorithm,
    data: FederatedDataset | None = None,
    *,
    rounds: int = 3,
    cohort: int = 4,
    systems: Systems | None = None,
    attack: Attack | None = None,
    lanes: tuple[int, ...] = (3,),
    devices: tuple[int, ...] = (1,),
    tolerance: float = 1e-5,
    continues: bool = False,
) -> tuple[Check, ...]:
    """The laws of :func:`check_algorithm`, each as a check of its own, for a test runner to show one by one.

    Arguments are those of :func:`check_algorithm`.  Checks share what they compute, from the first that is called on.

    Returns:
      Checks with a ``name``, in the order in which :func:`check_algorithm` calls them.

    Example:
      >>> import evenhand as eh
      >>> method = eh.algorithms.fedavg(eh.local.sgd(eh.testing.toy_model(), 0.1, epochs=1, batch_size=4))
      >>> checks = algorithm_checks(method)
      >>> checks[0].name
      'parameters have the form of the model'
      >>> checks[0]()

      With pytest: ``@pytest.mark.parametrize("check", checks, ids=lambda check: check.name)``.
    """
    check_process()
    ways = tuple((count, device_count) for device_count in devices for count in lanes)
    data = toy_data() if data is None else data
    data = data if algorithm.pooled is None else data.pooled
    capacity = int(data.train.sizes.max())
    params = jax.eval_shape(lambda: algorithm.model.init(jax.random.key(0)))
    rows: Any = (data.train.x, data.train.y)  # NumPy's: a process that was forked must not touch a device
    program = Program(
        algorithm=compressed(algorithm, params, rows, capacity, data.num_clients),
        cohort=cohort,
        capacity=capacity,
        lanes=1,
        systems=bound(systems, data.client_ids),
        attack=attack,
        buffer=rounds,
        masks=True,
    )
    # The other clients' rows are room beyond the largest client's; states per example have no such room.
    is_by_example = isinstance(algorithm.init_client, PerExample)
    has_room = attack is None and algorithm.pooled is None and not is_by_example
    spare = min(_SPARE, len(data.train.x) - capacity) if has_room else 0
    is_masked = any(phase.aggregator.unmasked is not phase.aggregator for phase in algorithm.phases)
    subject = _Subject(program, data, ways, spare, max(tolerance, rounding(params)))
    return checks_of(
        (True, "parameters have the form of the model", subject.check_forms),
        (True, "cohorts hold clients that may take part", lambda: check_cohorts(program, subject.rows.sizes)),
        (True, "clients know their own rows only", subject.check_rows),
        (True, "rounds keep the form of the state", subject.check_state),
        (True, "weights are those of the sampling", subject.check_weights),
        (True, "uploads are finite", subject.check_finite),
        (True, "padding changes nothing", subject.check_capacity),
        (True, "randomness comes from the keys", subject.check_keys),
        (True, "stragglers do a part of the work", subject.check_progress),
        (True, "adapted parameters are finite", subject.check_adapted),
        (True, "uploads are differences", subject.check_differences),
        (True, "empty slots have no vote", subject.check_slots),
        (continues, "clients continue from their state", subject.check_continued),
        (len(ways) > 1, "all lanes and devices agree", subject.check_ways),
        (True, "the engine is its readable twin", subject.check_twin),
        (is_masked, "masks change no number", subject.check_masks),
        (systems is None and attack is None, "a network gives the same numbers", subject.check_network),
        (True, "the same seed gives the same bits", subject.check_same_seed),
        (True, "another seed gives other numbers", subject.check_other_seed),
        (True, "rounds change models and states", subject.check_moves),
        (True, "absent clients keep their state", subject.check_absent),
        (True, "arguments are not modified", subject.check_arguments),
    )


class _Subject(Subject):
    """The laws of a method under test."""

    @property
    def apart(self) -> float:
        """A gap above what rounding does to the work of one round."""
        return max(_APART, rounding(self.params))

    def check_forms(self) -> None:
        algorithm, params = self.algorithm, self.params
        check_same_form(algorithm.global_params(self.state.server), params, "global_params")
        if algorithm.personal_params is not None:
            mine = tree.take(self.state.clients, jnp.int32(0))
            check_same_form(algorithm.personal_params(self.state.server, mine), params, "personal_params")
        if algorithm.adapt is not None:
            check_same_form(self.adapted, params, "adapt")

    @cached_property
    def adapted(self) -> Params:
        """The model as the first client adapts it; ``()``: clients do not."""
        adapt, data = self.algorithm.adapt, self.own(0)._replace(round=None)
        return () if adapt is None else adapt(self.params, data, jax.random.key(0))

    def check_adapted(self) -> None:
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.adapted)), (
            f"A client with {self._examples(0)} adapts its model to parameters that are not finite: guard what is not "
            "defined for so few."
        )

    def check_rows(self) -> None:
        """Uploads stay the same when all other clients' rows are corrupted."""
        sizes = np.array(self.rows.sizes)
        # The window of the smallest client, unlike that of the largest, reaches into rows of others.
        smallest = int(np.argmin(np.where(sizes > 0, sizes, np.iinfo(sizes.dtype).max)))
        for k in dict.fromkeys([self.largest, smallest]):
            start, row = int(self.rows.starts[k]), jnp.arange(self.rows.x.shape[0])
            is_own = (row >= start) & (row < start + sizes[k])
            x, y = (tree.among(is_own, part, -part - 1) for part in (self.rows.x, self.rows.y))
            self._check_rows_of(k, self.rows._replace(x=x, y=y))

    def _check_rows_of(self, k: int, others: Rows) -> None:
        algorithm, state, rows = self.algorithm, self.state, self.rows
        for index, phase in enumerate(algorithm.phases):
            clean, corrupted = self.worked(index, k), self.worked(index, k, rows=others)
            largest = protocol.largest_weight(algorithm, self.program.capacity)
            assert protocol.accepts_report(phase.aggregator, clean[0], largest), (
                "A client reports a weight that is below 0 or above that of its sampling, or a loss that is not finite "
                "for an aggregator with needs_loss: report sampling.weight(data.size), and the loss "
                "eh.local.full_loss(model, params, data)."
            )
            assert are_equal(clean, corrupted), (
                "A client's upload depends on other clients' rows: work and report may read data.size rows from "
                "data.start on, such as those of eh.rounds.own_rows(data) that are before data.size."
            )
        if (adapt_client := algorithm.adapt) is not None:
            served, data = algorithm.global_params(state.server), self.own(k)._replace(round=None)
            adapt = jax.jit(lambda x, y: adapt_client(served, data._replace(x=x, y=y), jax.random.key(3)))
            assert are_equal(adapt(rows.x, rows.y), adapt(others.x, others.y)), (
                "A client adapts its model to other clients' rows: adapt may read data.size rows from data.start on."
            )

    def check_weights(self) -> None:
        """Weights that depend on the size alone, up to a common factor."""
        if (attack := self.program.attack) is not None and attack.report is not None:
            return
        expected = np.array(jax.vmap(self.algorithm.sampling.weight)(self.rows.sizes), np.float64)[:, None]
        for index, (reports, deltas) in enumerate(self.sent):
            aggregator, memory = self.algorithm.phases[index].aggregator, self.state.aggregators[index]
            given, k = np.array(reports.weight, np.float64).reshape(len(expected), -1), self.largest
            is_same = np.allclose(given * expected[k], given[k] * expected, rtol=1e-5, atol=0.0)
            # All phases have one sampling: after the first, clients may have a vote each.
            is_free = (index and np.all(given == given[k])) or not self._weighs_by_size(index)
            assert is_same or is_free or not reads_weights(aggregator, Upload(deltas, *reports), memory), (
                "A client's weight is not the one of the method's sampling, so the average over cohorts is biased: "
                "report sampling.weight(data.size), with the sampling that Algorithm(sampling=) gets. For other "
                "weights, such as equal ones, give both a sampling that has them: eh.sampling.uniform(weighted=False)."
            )

    def _weighs_by_size(self, index: int) -> bool:
        """Whether the reported weight depends on nothing that a client gets, keeps or has, but on its size."""
        phase, given, data = self.algorithm.phases[index], self.given(index), self.own(self.largest)

        def weight(message: PyTree, memory: PyTree, x: Array, y: Array) -> Array:
            return phase.report(message, memory, data._replace(x=x, y=y)).weight

        return not any(programs.used_inputs(jax.make_jaxpr(weight)(*given, data.x, data.y)))

    def check_capacity(self) -> None:
        if self.room == self.spare:
            return  # the same numbers in all rounds
        for index in range(len(self.parts)):
            usual, roomy = self.worked(index), self.worked(index, spare=self.spare)
            draws = not are_equal(usual[1:], self.worked(index, seed=5)[1:])
            compared = 1 if draws else len(usual)  # numbers drawn for another capacity may be others
            assert are_close(usual[:compared], roomy[:compared], self.apart), (
                "Padding counts: a client's work or report changes with data.capacity, which is only the largest size "
                "that a client can have; divide by data.size."
            )

    def check_keys(self) -> None:
        start, size = int(self.rows.starts[self.largest]), int(self.rows.sizes[self.largest])
        order = np.arange(len(self.rows.x))
        order[start : start + size] = order[start : start + size][::-1]
        turned = self.rows._replace(x=self.rows.x[order], y=self.rows.y[order])
        if (adapt := self.algorithm.adapt) is not None:
            program = jax.make_jaxpr(partial(adapt, self.params, self.own(0)._replace(round=None)))(
                jax.random.key(3)
            )
            assert not makes_keys(program) or any(programs.used_inputs(program)), (
                "A client adapts its model with a key of its own: adapt must draw from the key that it gets."
            )
        for index, phase in enumerate(self.algorithm.phases):
            made_with = self.worked(index), self.worked(index, seed=5), self.worked(index, rows=turned)
            # The upload, and then what the client keeps.
            for made, again, other in list(zip(*made_with, strict=True))[1:]:
                is_fixed = are_equal(made, again) and not are_close(made, other, self.apart)
                assert not is_fixed or not makes_keys(self.traced_work(index)), (
                    "A client's work draws from a key of its own: it must draw from the key that it gets, which is "
                    "another in each round."
                )
            self._check_server_keys(index)
            if promised_noise(phase.aggregator) > 0:
                self._check_noise(index)

    def _check_server_keys(self, index: int) -> None:
        phase, memory, key = self.algorithm.phases[index], self.state.aggregators[index], jax.random.key(3)
        (reports, deltas), everybody = self.sent[index], jnp.ones(self.data.num_clients, bool)
        uploads, noise = Upload(deltas, *reports), jax.random.split(key, self.data.num_clients)
        reduced = partial(reduce_uploads, phase.aggregator.unmasked)
        direction = jax.eval_shape(reduced, uploads, everybody, memory, key, noise)[0]
        given = (self.state.server, tree.zeros(direction), jnp.int32(self.program.cohort), key)
        program = jax.make_jaxpr(phase.server)(*given)
        if not makes_keys(program) or programs.used_inputs(program)[-1]:
            return
        after = self.algorithm.global_params(phase.server(*given)[0])
        assert are_equal(after, self.algorithm.global_params(self.state.server)), (
            "The server draws from a key of its own: it must draw from the key that it gets, which is another in each "
            "round."
        )

    def _check_noise(self, index: int) -> None:
        """One cohort's uploads under two keys."""
        algorithm, state, rows = self.algorithm, self.state, self.rows
        keys, m = protocol.roots(algorithm, keys_of(0)), self.program.cohort
        cohort = protocol.cohort(algorithm, None, rows.sizes, m, keys, 0, index)
        cohort = cohort._replace(present=jnp.ones_like(cohort.present))
        reports, deltas = tree.take(self.sent[index], cohort.ids)
        given = (state.server, state.aggregators[index], reports, deltas, cohort, rows.malicious)
        once, again = (self.parts[index].server(*given, keys_of(seed), 0)[0].server for seed in (0, 1))
        assert not are_equal(once, again), (
            "Another key gives the same noise: that of a release must be drawn from the key that lift or lower gets."
        )

    def check_progress(self) -> None:
        if not self.algorithm.partial_work:
            return
        for index, phase in enumerate(self.algorithm.phases):
            if phase.effort is None:
                continue
            # Of two epochs, a half and more is both.
            whole, part = (phase.effort(self.own(self.largest, done)) for done in (1.0, 0.25))
            is_part = part.steps < whole.steps and not may_be_assumed(phase.effort, self.own(self.largest))
            assert not is_part or self._shows_progress(index), (
                "A straggler does all of the work: data.progress changes its effort, but not what it uploads or keeps. "
                "Take effort(data).steps steps, as eh.local.over_batches does."
            )

    def _shows_progress(self, index: int) -> bool:
        """Whether a part of the work gives another result, of some client, also after a schedule has warmed up."""
        for round in _LATER:
            for k in np.argsort(-np.array(self.rows.sizes), stable=True)[:_SENDERS]:
                whole, part = (self.worked(index, k, progress=done, round=round) for done in (1.0, 0.25))
                if not are_equal(whole, part):
                    return True
                if not are_coarse(whole.delta):
                    return False
        # Signs may be the same after each step; and a schedule may begin later.
        return programs.used_inputs(self.traced_work(index))[-2]

    def check_finite(self) -> None:
        for _, deltas in self.sent:
            accepted = np.array(jax.vmap(protocol.accepts_delta, axis_size=self.data.num_clients)(deltas))
            broken = np.flatnonzero(~accepted & ~np.array(self.rows.malicious))
            assert not broken.size, (
                f"The upload of a client with {self._examples(broken[0])} is not finite, so each run rejects it: in "
                "Phase.work, guard what is not defined for some data, such as a division by data.size - 1."
            )

    def _examples(self, k: int) -> str:
        return counted(int(self.rows.sizes[k]), "training example")

    def check_differences(self) -> None:
        """Uploads at a model, and at one whose parameters are all larger by a constant."""
        # Of clients as large as there are, that are honest.
        sizes = np.where(self.rows.malicious, 0, self.rows.sizes)
        ids = np.argsort(-sizes, stable=True)[: min(_SENDERS, np.count_nonzero(sizes))]
        if self.data.num_clients == 1 or not len(ids):
            return
        statistics = self.algorithm.model.statistics
        # They are measured behind parameters that are larger, and grow with these.
        measured = () if statistics is None else statistics.paths
        moved = self.begin(jax.tree.map(lambda leaf: leaf + jnp.asarray(_SHIFT, leaf.dtype), self.params))

        def learnt(params: PyTree) -> list[Any]:
            paths = jax.tree.leaves_with_path(params)
            return [leaf for path, leaf in paths if not named_path(path).endswith(measured)]

        def grown(index: int, most: int) -> list[Any]:
            rows = self.rows._replace(sizes=jnp.minimum(self.rows.sizes, most))
            both = (self.uploads(state, index, rows, ids)[1] for state in (self.state, moved))
            before, after = (map(partial(np.array, dtype=np.float64), learnt(deltas)) for deltas in both)
            return [(b - a) / _SHIFT for a, b in zip(before, after, strict=True)]

        for index in range(len(self.parts)):
            assert not grow_with_parameters(partial(grown, index), sizes[ids], len(learnt(self.params))), (
                "An upload grows by what is added to the parameters: a client sends parameters, not how they changed."
            )

    def check_slots(self) -> None:
        for index, (reports, deltas) in enumerate(self.sent):
            uploads, ids = Upload(deltas, reports.weight, reports.loss), np.arange(self.data.num_clients)
            aggregator, memory = self.algorithm.phases[index].aggregator, self.state.aggregators[index]
            check_slots(aggregator, uploads, ids, memory, self.tolerance)

    def check_state(self) -> None:
        for index in range(len(self.parts)):
            (_, memory), after = self.given(index), self.worked(index).state
            check_same_form(after, memory, "the state that Phase.work returns")
        check_same_form(self.first[0], self.state, "the state after a round")

    def check_moves(self) -> None:
        """After all rounds, unless no upload was accepted in any."""
        algorithm, before, (after, shown) = self.algorithm, self.state, self.first
        if not np.any(shown["reported"]):
            return

        def served(state: protocol.RoundState) -> PyTree:
            serve = algorithm.personal_params
            return () if serve is None else jax.vmap(partial(serve, state.server))(state.clients)

        models = (algorithm.global_params(state.server) for state in (before, after))
        assert not are_equal(*models) or not are_equal(served(before), served(after)), (
            "No round changes a model that clients are served: global_params, or personal_params, must read the "
            "parameters that Phase.server, or Phase.work, returns. For a method that moves it later, give more rounds=."
        )
        # What a client keeps of the rest of short uploads may stay 0.
        is_shortened = any(phase.aggregator.compression for phase in algorithm.phases)
        has_states = jax.tree.leaves(before.clients) and algorithm.pooled is None and not is_shortened
        is_anchor = any(np.any(numbers(leaf)) for leaf in jax.tree.leaves(before.clients))
        assert not has_states or is_anchor or not are_equal(before.clients, after.clients), (
            "No round changes a client's state, which stays 0: return the new one from Phase.work, or omit init_client."
        )

    def check_continued(self) -> None:
        _, memory = self.given(0)
        traced = map(self.traced_work, range(len(self.parts)))
        count = len(jax.tree.leaves(memory))
        is_read = np.any([programs.used_inputs(program)[:count] for program in traced], axis=0)
        assert is_read.any(), (
            "A client starts anew in each round, though continues=True: neither Phase.work nor Phase.report reads the "
            "state that it kept."
        )
        if (serve := self.algorithm.personal_params) is not None:
            served = jax.make_jaxpr(serve)(self.state.server, memory)
            is_read |= programs.used_inputs(served)[-count:]
        for (path, _), is_useful in zip(jax.tree.leaves_with_path(memory), is_read, strict=True):
            assert is_useful, (
                f"Nothing reads {named_path(path)!r} of a client's state, though continues=True: read it in "
                "Phase.work, or do not keep it."
            )

    def check_ways(self) -> None:
        base, *others = self.ways
        for way in others:
            words = f"{way[0]} lanes on {way[1]} devices and {base[0]} on {base[1]}"
            check_close(self.first, self.run(way), self.tolerance, words)

    def check_twin(self) -> None:
        check_close(self.first, self.plain, self.tolerance, "the engine and its readable twin")

    def check_masks(self) -> None:
        words = "the engine with the masks of secure sums and without"
        check_close(self.first, self.run(self.ways[0], masks=False), self.tolerance, words)

    def check_network(self) -> None:
        """All rounds over a network in one process; a method may be refused there, in a sentence."""
        try:
            check_deployable(self.algorithm)
        except EvenhandError as refusal:
            reason = str(refusal)
        else:
            self._check_network()
            return
        assert reason.endswith("."), "A method is refused on a network without a sentence."

    def _check_network(self) -> None:
        count = self.program.buffer
        job = Job(algorithm=self.algorithm, data=self.data, rounds=count, start=self.params)
        server, nodes = federation(job, self.program.cohort)
        for _ in range(count):
            server.train_round()
        state = states_of(server, nodes)._replace(last_round=())
        shown = {name: np.array(server.progress.per_round[name]) for name in self.plain[1]}
        check_close(
            self.plain,
            (state, shown),
            max(_NETWORK_TOLERANCE, rounding(self.params)),
            "the readable twin and a network",
        )
        check_close(self.first, (state, shown), self.tolerance, "the engine and a network")

    def check_same_seed(self) -> None:
        is_same = are_equal(self.first, self.run(self.ways[0]))
        assert is_same, (
            "The same seed gave different bits: a function of the method reads numpy.random, a clock or a variable "
            "that changes."
        )

    def check_other_seed(self) -> None:
        """Unless nothing is drawn: neither cohorts nor anything of the work, the reduction and the server's step."""
        keys = protocol.roots(self.algorithm, keys_of(0))
        given = self.program, self.state, self.rows
        one_round = partial(twin.run_rounds, *given, first=0, count=1, parts=self.parts)
        is_same = are_equal(self.first[0], self.run(self.ways[0], seed=1)[0])
        assert not is_same or not is_random(jax.make_jaxpr(one_round)(keys=keys)), (
            "Another seed gave the same numbers: the sampling and the work do not draw from their keys, or no round "
            "changes anything."
        )

    def check_absent(self) -> None:
        took_part, keys = set[int](), protocol.roots(self.algorithm, keys_of(0))
        before, after = self.state, self.run(self.ways[0], rounds=1)[0]
        for index in range(len(self.algorithm.phases)):
            systems, sizes, m = self.program.systems, self.rows.sizes, self.program.cohort
            drawn = protocol.cohort(self.algorithm, systems, sizes, m, keys, 0, index)
            took_part |= set(np.array(drawn.ids)[np.array(drawn.present)].tolist())
        absent = np.array([k for k in range(self.data.num_clients) if k not in took_part], int)
        kept = (jax.tree.map(lambda leaf: leaf[absent], state.clients) for state in (before, after))
        assert are_equal(*kept), (
            "A client outside the cohort lost or changed its state, which only its own Phase.work may."
        )

    def check_arguments(self) -> None:
        params, rows, copies = self.arguments
        assert self.first and self.sent, "what would have written to them"
        assert are_equal(copies, jax.tree.map(np.array, (params, rows))), (
            "The method wrote to its arguments: copy an array before you change it."
        )

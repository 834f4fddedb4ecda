"""The training loop. It knows no model and no objective: it sees micro-batches, sums and norms.

One update (micro-batches m = 1 … M, terms t):

    loss = Σ_t coefficient_t × (Σ_m sum_tm) / (Σ_m norm_tm)

The norms of all micro-batches are known from the batches before the first backward pass (`norms`), so gradients
never depend on how an update was cut up: no mean of means. A term that is not announced there (a router's balance
loss) is divided by M × its norm: a mean over micro-batches. A term whose norm is 0 adds a finite 0. An update with
no target at all is counted and leaves the weights as they are; its number passes, so the schedule does not shift.

Where several processes train one run, micro-batch m belongs to rank m mod R (`ranks`), and sums, norms, counts and
gradients are added over the ranks: M is that of the whole update, and its number keys dropout.

Everything an update depends on is (seed, step, weights, optimizer state, plan; of a stream, its table): a run that is
killed at any moment and resumed equals the uncut run bit for bit, on the same machine and thread count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
from torch import nn

from unmask.batch import Batch
from unmask.config.base import finite
from unmask.errors import Diverged, Stopped, Unread, UserError
from unmask.tensors import named_once
from unmask.train import checkpoint, faults, schedule, worth
from unmask.train.base import Batches, Counters, Settings
from unmask.train.compiled import Compilations
from unmask.train.devices import at_rest, choose_precision, missing_explained, to_device
from unmask.train.faults import Documents
from unmask.train.floor import Floor
from unmask.train.hooks import Evaluation, Gradients, Metrics, Progress, Stop
from unmask.train.layout import Layout
from unmask.train.loggers import Loggers
from unmask.train.optim import Optimizer
from unmask.train.passes import Passes
from unmask.train.plan import Calibration, Plan, given, read_plan, same_budget, steps_within
from unmask.train.prefetch import Prefetch
from unmask.train.ranks import Ranks, Unwritten, number_of, request_of
from unmask.train.room import Room, due, writers
from unmask.train.saver import Saver
from unmask.train.spread import Program, Spread
from unmask.train.totals import Norms, totals_of

Found = TypeVar("Found")


class Trainer:
    """Trains `networks` in place and keeps the run in `out` (metrics.jsonl, plan.json, checkpoints/)."""

    def __init__(
        self,
        networks: nn.ModuleDict,
        terms: Program,
        batches: Batches,
        flops: Callable[[Batch], float],
        settings: Settings,
        out: Path,
        evaluation: Evaluation | None = None,
        progress: Progress | None = None,
        norms: Norms = lambda networks, batch: batch.norms(),
        gradients: Gradients | None = None,
        ranks: Ranks | None = None,
        documents: Documents = lambda step, progress: (),
        sample: Batches | None = None,
    ) -> None:
        """sample: batches by which the budget is turned into updates, where the run's own cannot be looked up ahead."""
        self.ranks = ranks or Ranks()
        # What will be sharded has no storage yet: it may be too large for one process.
        self.networks = networks if self.ranks.parallel == "fsdp" else networks.to(settings.device)
        self.start: Callable[[nn.ModuleDict, Layout], None] | None = None
        """Fills networks that lie so with what a run starts from, where they do not hold it already."""
        self.spread = Spread(networks)
        self.norms = norms
        self.terms, self.batches, self.flops = terms, batches, flops
        self.sample = sample or batches
        self.settings, self.out = settings, out
        self.evaluation, self.gradients = evaluation, gradients
        self.progress = progress if self.ranks.first else None
        self.documents = documents
        self.optimizer = Optimizer(networks, settings.train)
        self.floor = Floor(settings.train.warmup_steps)
        self.counters = Counters()
        self.loggers: Loggers | None = None
        """Who gets the lines of metrics.jsonl, too."""
        self.plan: Plan | None = None
        self.calibration: Calibration | None = None
        self.compiled = Compilations()
        self.compiles: worth.Answer = False, ""
        self.requests: Stop | None = None
        self.over = False
        """Whether `run` has ended: nobody uses a batch that is still being built."""

    # ------------------------------------------------------------ the run

    def run(self, resume: bool = False) -> Counters:
        """Train to the end of the budget. KeyboardInterrupt after Ctrl-C or SIGTERM, with a checkpoint written."""
        place = self._restore() if resume else None
        with self.ranks.together():
            self.out.mkdir(parents=True, exist_ok=True)
            if not resume:
                self._refuse_used()
            self._decide()
            self._require_space()
        self._lay_out(place)
        if (told := self.ranks.describe(self.micro)) is not None:
            self._say(told)
        file = self.out / "metrics.jsonl"
        with self.ranks.together():  # a logger may fail to start
            metrics = Metrics(file, self.counters.step, self.loggers) if self.ranks.first else Unwritten()
        prefetch = Prefetch(self._mine, depth=0 if self.settings.device.type == "cpu" else 2)
        try:
            with self.ranks.stop() as stop, missing_explained(self.settings.device), self.saver:
                self.requests = stop
                if self.counters.step:  # stopped while evaluating: that comes first
                    self._between(metrics, stop, saved=True)
                while not self._finished:
                    self._enter()
                    line = self._next(prefetch, metrics, stop)
                    if self.ranks.first and self.gradients is not None and self.gradients.due(self.counters.step):
                        line["gradients"] = self._compare(self.gradients)
                    metrics.write(line)
                    if self.progress is not None:
                        self.progress.waited = prefetch.waited
                        self.progress.show(line, self.total_steps)
                    self._between(metrics, stop, saved=False)
        finally:
            self.over = True
            prefetch.close()
            metrics.close()
            self.compiled.close()
            if self.progress is not None:
                self.progress.close()
        return self.counters

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    @property
    def total_steps(self) -> int | None:
        return self.plan.total_steps if self.plan is not None else None

    @property
    def micro(self) -> int:
        """Micro-batches of an update, over all ranks."""
        asked = self.settings.train.grad_accumulation
        if self.plan is not None:
            return self.plan.micro_batches or asked
        return max(asked, self.ranks.count)

    @property
    def stopped(self) -> bool:
        """Whether whoever waits for text should wait no longer. Several ranks stop together, after an update."""
        return self.over or (self.ranks.count == 1 and self.requests is not None and bool(self.requests.requested))

    @property
    def _finished(self) -> bool:
        return self.plan is not None and self.counters.step >= self.plan.total_steps

    def _say(self, text: str) -> None:
        if self.progress is not None:
            self.progress.say(text)

    def _enter(self) -> None:
        """Tell of a stage that begins; what its shapes compile is no fault of the run."""
        stages, step = self.settings.train.stages, self.counters.step
        begins = self.settings.train.begins(self.plan.total_steps) if self.plan is not None else [0]
        if len(begins) > 1 and step in begins:
            self.compiled.expect()
            k = begins.index(step)
            self._say(
                f"stage {k + 1} of {len(begins)}, from update {step + 1:,} on: context {stages[k].context}, "
                f"{stages[k].batch_size} rows an update"
            )

    # ------------------------------------------------------------ beginning

    def _refuse_used(self) -> None:
        if checkpoint.find(self.checkpoints).whole:
            raise UserError(f"{self.out} already holds a run: give another out=, or resume=auto to continue it")

    def _restore(self) -> Path | None:
        """Take up counters and plan of the newest whole checkpoint that training can go on from, if any."""
        place: Path | None = None
        with self.ranks.together():
            place = self._found() if self.ranks.first else None
        step = int(self.ranks.told(-1 if place is None else float(place.name.removeprefix("step-"))))
        with self.ranks.together():
            self.plan = read_plan(self.out / "plan.json")
            if step < 0:
                return None
            place = self.checkpoints / f"step-{step}"
            state = checkpoint.read_state(place)
            self.plan = self.plan or Plan(**state["plan"])
            self.counters = Counters(**{f.name: state[f.name] for f in fields(Counters) if f.name in state})
            self.counters.checkpoint_bytes += checkpoint.size(place)
        self._say(f"resuming {self.out} after step {self.counters.step}")
        return place

    def _found(self) -> Path | None:
        """The checkpoint to go on from; without one, or without a plan, the run starts from the beginning."""
        place, passed = checkpoint.newest(self.checkpoints, resumable=True)
        for name in passed:
            self._say(f"ignoring the incomplete checkpoint {name}")
        checkpoint.clean(self.checkpoints)
        if place is not None and not (self.out / "plan.json").exists() and checkpoint.read_state(place)["plan"] is None:
            self._say("the run was stopped before its length was known: starting from the beginning")
            checkpoint.discard(self.checkpoints)  # a few timed steps; another life may time, hence plan, otherwise
            return None
        return place

    def _lay_out(self, place: Path | None) -> None:
        """Bring the networks to the ranks' devices, then a checkpoint's weights and optimizer state into them, or those
        that the run starts from."""
        self.spread = self.ranks.spread(self.networks, self.settings.device)
        layout = self.spread.layout
        if layout is not self.optimizer.layout:  # the parameters are others now
            self.optimizer = Optimizer(self.networks, self.settings.train, layout)
        self.saver = Saver(self.checkpoints, self.settings.checkpoint, self.ranks, layout)
        with self.ranks.together():
            if place is not None:
                checkpoint.load_model(self.networks, place, layout)
                self.optimizer.load_state_tensors(checkpoint.load_optimizer(place))
            elif self.start is not None:
                self.start(self.networks, layout)
        if self.compiles[0]:
            self.spread.compile(self.compiled)
        self.passes = self._passes_of(self.spread)

    def _decide(self) -> None:
        """Fix precision, length and whether to compile, or replay what was fixed."""
        settings = self.settings
        if self.plan is not None:
            same_budget(self.plan, settings.budget, self.out / "plan.json")
            self.precision, self.precision_reason = self.plan.precision, self.plan.precision_reason
            compiles = settings.compile is True if self.plan.compile is None else self.plan.compile
            self.compiles = compiles, self.plan.compile_reason
            return
        self.precision, self.precision_reason = choose_precision(settings.precision, settings.device, self.networks)
        total = steps_within(settings.budget, self.sample, self.flops, settings.train.begins)
        self.compiles = self._whether_to_compile(total)
        if total is None:
            self.calibration = Calibration(settings.budget.minutes or 0.0, settings.train)
        else:
            self._fix(total)

    def _fix(self, total: int, calibration: Calibration | None = None) -> None:
        steps = len(calibration.times) if calibration else 0
        pace = calibration.seconds_per_step if calibration else None
        budget = given(self.settings.budget)
        fixed = self.precision, self.precision_reason, steps, pace, self.micro, *self.compiles
        self.plan = Plan(total, budget, *fixed)
        if self.ranks.first:
            self.plan.write(self.out / "plan.json")
        if (warning := schedule.idle(total, self.settings.train)) is not None:
            self._say(warning)

    def _whether_to_compile(self, total: int | None) -> worth.Answer:
        """As asked; or timed, on copies of the networks that are thrown away."""
        asked, train = self.settings.compile, self.settings.train
        if asked != "auto":
            return asked, "as asked"
        if self.ranks.count > 1 or train.activation_checkpointing:
            return False, "auto: not tried with several processes, nor with activation checkpointing"
        copies = Spread(deepcopy(self.networks))
        passes, norms = self._passes_of(copies), partial(self.norms, copies.networks)
        micro = [self.sample(step, 0.0) for step in range(worth.WARM + worth.TIMED)]  # no part of what is timed
        totals = [totals_of(each, each[0], norms, self.flops, self.ranks) for each in micro]

        def once(step: int) -> None:
            passes(step, micro[step], totals[step].norms, totals[step].number)
            copies.networks.zero_grad()

        try:
            answer = worth.decide(once, lambda: copies.compile(Compilations()), total, self.settings.budget.minutes)
        finally:
            torch.compiler.reset()
        self._say(f"torch.compile: {'yes' if answer[0] else 'no'} ({answer[1]})")
        return answer

    def _passes_of(self, spread: Spread) -> Passes:
        s = self.settings
        return Passes(spread, self.terms, self.ranks, s.device, self.precision, s.seed)

    def _require_space(self) -> None:
        """Refuse at the start, not after hours, a disk that cannot hold the checkpoints still to come."""
        if self.ranks.first:
            config = self.settings.checkpoint
            number = writers(config, self.ranks.parallel, self.ranks.count)
            room = Room(checkpoint.need(named_once(self.networks)[0], 0, number), self.optimizer.state_bytes())
            self._say(room.required(self.out, self.checkpoints, self.total_steps, config, self.counters.step))

    # ------------------------------------------------------------ one update

    def _pace(self, step: int) -> tuple[float, float]:
        """(progress, share of the peak rate) of an update; the same whether or not the total is known already."""
        if self.plan is None or step < self.plan.calibration_steps:
            return 0.0, schedule.warming(step, self.settings.train)
        total = self.plan.total_steps
        return step / total, schedule.factor(step, total, self.settings.train)

    def _update(self, prefetch: Prefetch) -> dict[str, object]:
        """One update of the weights; returns its line of metrics."""
        began = time.perf_counter()
        step, c = self.counters.step, self.counters
        share = self._pace(step)[1]
        ahead = [] if self.plan is None else range(step + 1, self.plan.total_steps)
        micro = prefetch.get(step, ahead, lambda s: self._pace(s)[0])
        filler = micro[0] if micro else self.batches(step, self._pace(step)[0], range(0, self.micro, self.micro))[0]
        norms = partial(self.norms, self.networks)
        totals = totals_of(micro, filler, norms, self.flops, self.ranks)
        self.optimizer.zero()
        values = self.passes(step, micro, totals.norms, totals.number, filler)
        counted = {key: v for key, v in values.items() if totals.norms.get(key, 1.0) > 0}
        loss = sum(coefficient * value for coefficient, value in counted.values()) if counted else None
        norm = 0.0
        if totals.asked:
            norm = self.optimizer.gradient_norm(self.settings.train.clip_norm)
            if self._usable(loss, norm):
                self.optimizer.step(share)
        seconds = time.perf_counter() - began
        if self.calibration is not None:  # all ranks must take the time for the same
            seconds = self.ranks.told(seconds)
        c.tokens += totals.tokens
        c.target_tokens += totals.target_tokens
        c.flops += totals.flops
        c.batches_without_targets += totals.number - totals.asked
        c.step += 1
        c.seconds += seconds
        if self.calibration is not None and self.calibration.add(seconds):
            self._fix(self.calibration.total_steps, self.calibration)
            self.calibration = None
        line: dict[str, object] = {k: getattr(c, k) for k in ("step", "tokens", "target_tokens", "seconds", "flops")}
        line["lr"] = share * self.settings.train.learning_rate
        line["loss"] = finite(loss)
        line["terms"] = {"/".join(key): finite(values[key][1]) if key in counted else None for key in values}
        line["grad_norm"] = finite(norm)
        for name in ("batches_without_targets", "skipped"):
            if number := getattr(c, name):
                line[name] = number
        return line

    def _next(self, prefetch: Prefetch, metrics: Metrics | Unwritten, stop: Stop) -> dict[str, object]:
        """`_update`; where its text cannot be had, or a stop is asked for while it is waited for or compiled, save and
        leave."""
        try:
            return self.compiled.counted(lambda: self._update(prefetch), self.counters, self._say)
        except Unread:
            if self._keep(metrics):
                step = self.counters.step
                self._say(f"the run is saved after step {step}: resume=auto continues once the text can be read")
            raise
        except Exception as error:
            if not isinstance(error, Stopped) and not (stop.requested and self.compiled.failed(error)):
                raise
            self._keep(metrics)
            self._leave(stop.requested or "")

    def _mine(self, step: int, progress: float) -> list[Batch]:
        """This rank's micro-batches of an update."""
        if self.ranks.count == 1 and self.micro == self.settings.train.grad_accumulation:
            return self.batches(step, progress)
        return self.batches(step, progress, self.ranks.deal(self.micro))

    def _usable(self, loss: float | None, norm: float) -> bool:
        """Whether an update may move the weights; one at fault is told with its documents, and skipped or an end."""
        c, train = self.counters, self.settings.train
        why = faults.fault(loss, norm, train.skip_above)
        if why is None:
            c.skipped_in_a_row = 0
            return True
        documents = self.documents(c.step, self._pace(c.step)[0])
        if self.ranks.first:
            faults.write(self.out, c.step + 1, loss, norm, documents)
        said, skips = faults.told(c.step + 1, why, documents), train.at_fault == "skip"
        c.skipped, c.skipped_in_a_row = c.skipped + 1, c.skipped_in_a_row + 1
        if skips and c.skipped_in_a_row < faults.MOST:
            self._say(f"WARNING: {said}; it is skipped")
            return False
        self.saver.settle()
        raise Diverged(faults.ending(said, list(checkpoint.find(self.checkpoints).whole.values()), skips))

    # ------------------------------------------------------------ between updates

    def _between(self, metrics: Metrics | Unwritten, stop: Stop, saved: bool) -> None:
        """After an update: evaluate and save where due; on a stop, save and leave."""
        c, config = self.counters, self.settings.checkpoint
        self.saver.between()
        evaluated, best = False, c.best_step
        if self.evaluation is not None and self.evaluation.due(c.step, self.total_steps) and c.evaluated != c.step:
            evaluated = self._evaluate(self.evaluation, metrics, stop)
        request = request_of(self.ranks.most(number_of(stop.requested)))  # one rank's is all ranks'
        scheduled = due(c.step, config) or c.best_step != best or self._finished
        if (scheduled or request) and (evaluated or not saved):
            self._save(metrics)
        if request:
            self.saver.settle()
            self._leave(request)

    def _leave(self, request: str) -> NoReturn:
        then = "resume=auto continues" if self.plan else "its length is not known yet: resume=auto starts again"
        self._say(f"stopped by {request} after step {self.counters.step}; {then}")
        raise KeyboardInterrupt(request)

    def _save(self, metrics: Metrics | Unwritten) -> None:
        """Write a checkpoint, which is never newer than the lines that led to it."""
        with self.ranks.together():
            metrics.sync()
        self.saver.save(self.networks, self.optimizer, self.counters, self.plan)

    def _keep(self, metrics: Metrics | Unwritten) -> bool:
        """Save what is trained, where no text comes any more; alone, since other ranks may wait for that text.
        Whether there was something to save."""
        step = self.counters.step
        if self.ranks.count > 1 or not step:
            return False
        self.saver.settle()
        if step in checkpoint.find(self.checkpoints).whole:
            return False
        self._save(metrics)
        self.saver.settle()
        return True

    def _compare(self, gradients: Gradients) -> dict[str, object]:
        """The gradients of the parts of the last update's micro-batch with the most parts, one by one."""
        step = self.counters.step - 1
        micro = self.batches(step, self._pace(step)[0], *([range(self.micro)] if self.ranks.count > 1 else []))
        batch = max(micro, key=lambda b: len({part for (part, _), norm in b.norms().items() if norm}))
        with at_rest(self.networks, self.settings.device), torch.enable_grad():
            with self.passes.casting():
                terms = self.terms(self.networks, to_device(batch, self.settings.device), None)
            return gradients(self.networks, {key: terms[key] for key in batch.heads})  # no router's

    def measured(self, function: Callable[[nn.ModuleDict], Found]) -> Found:
        """What a function makes of the networks in evaluation mode, as they are, on every rank."""
        with at_rest(self.networks, self.settings.device):
            return self.spread.measured(function)

    def _evaluate(self, evaluation: Evaluation, metrics: Metrics | Unwritten, stop: Stop) -> bool:
        """Evaluate without touching the trajectory; False when a stop was asked for: it is made after resuming."""
        c = self.counters
        result: dict[str, float] | None = None
        try:
            with nullcontext() if self.spread.lockstep else stop.interruptible():
                result = dict(self.measured(evaluation.function))
        except KeyboardInterrupt:
            if stop.requested is None:
                raise
        if self.ranks.most(float(result is None)) or result is None:  # cut short on one is cut short on all
            return False
        c.evaluated = c.step
        value = self.ranks.told(result["loss"])  # decides what is kept, and that by one rank's last bits
        if math.isfinite(value) and (c.best_value is None or value < c.best_value):
            c.best_step, c.best_value = c.step, value
        metrics.write({"step": c.step, "evaluation": {k: v if math.isfinite(v) else None for k, v in result.items()}})
        self._say(f"step {c.step} · evaluation " + ", ".join(f"{k} {v:.4f}" for k, v in result.items()))
        if (warning := self.floor(c.step, result)) is not None:
            self._say(warning)
        return True

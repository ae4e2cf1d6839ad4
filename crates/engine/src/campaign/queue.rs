//! Which run comes next: plain data and plain rules, without threads and without a clock of its own.
//!
//! - Tasks are begun in their order. Those that are `first` are over before any other begins, and
//!   those that are `last` begin when all others are over.
//! - A task that could not be run, which was not its fault, is tried again after a while that grows;
//!   others go on meanwhile.
//! - A task has one run, or several attempts from one start.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ringfence_model::campaign::{Spent, TaskState};
use ringfence_model::plan::Budget;

use super::judge::Judged;
use crate::ids::RunId;
use crate::store::TaskRecord;

/// BOUND: what is not our fault three times in a row is not going away.
pub(super) const TRIES: u32 = 3;
/// BOUND: the first wait; each further one is four times as long.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// A run that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Where its task is in the queue.
    pub at: usize,
    /// From 1.
    pub attempt: u32,
}

/// What is next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Run(Unit),
    /// Nothing now; perhaps then, or when something ends.
    Wait(Option<Instant>),
    /// Nothing any more.
    Nothing,
}

/// What comes after a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Further attempts of the task are under way or to come.
    More,
    Again(Duration),
    /// Its result is to be decided on.
    Decide,
}

/// One task and its runs.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub record: TaskRecord,
    pub attempts: u32,
    /// The id by which attempts are found; of one attempt it means nothing.
    pub group: RunId,
    /// Attempts that are to be made.
    todo: VecDeque<u32>,
    running: u32,
    /// Attempts that left a result.
    pub done: BTreeMap<u32, (RunId, Judged)>,
    /// Why the last one left none.
    pub fault: Option<(TaskState, String)>,
    /// What runs used that are not among these: of earlier turns, and those that were stopped.
    pub before: Spent,
    not_before: Option<Instant>,
}

impl Entry {
    /// A task; `done` are attempts whose results are there already.
    pub fn new(
        record: TaskRecord,
        attempts: u32,
        group: RunId,
        done: BTreeMap<u32, (RunId, Judged)>,
    ) -> Self {
        let todo = (1..=attempts).filter(|number| !done.contains_key(number));
        Self {
            todo: if record.state.is_over() {
                VecDeque::new()
            } else {
                todo.collect()
            },
            attempts,
            group,
            running: 0,
            done,
            fault: None,
            before: record.figures.spent,
            not_before: None,
            record,
        }
    }

    /// Everything of it was done, and only its result is not decided on.
    pub fn is_undecided(&self) -> bool {
        !self.record.state.is_over() && self.todo.is_empty() && self.running == 0
    }
}

/// All tasks, in their order.
#[derive(Debug)]
pub(super) struct Queue {
    pub entries: Vec<Entry>,
    budget: Budget,
    /// Nothing more is begun.
    pub stopped: bool,
    /// Runs whose sandboxes are being made.
    pub starting: usize,
    /// Time that was spent in earlier sittings.
    spent_before: Duration,
    began: Instant,
}

impl Queue {
    pub fn new(
        entries: Vec<Entry>,
        budget: Budget,
        spent_before: Duration,
        began: Instant,
    ) -> Self {
        Self {
            entries,
            budget,
            stopped: false,
            starting: 0,
            spent_before,
            began,
        }
    }

    /// How many runs are under way.
    pub fn running(&self) -> usize {
        self.entries.iter().map(|own| own.running as usize).sum()
    }

    /// The next run, which is then under way.
    pub fn next(&mut self, now: Instant) -> Next {
        let open = |entry: &&Entry| !entry.record.state.is_over();
        let Some(phase) = self
            .entries
            .iter()
            .filter(open)
            .map(|own| own.record.when)
            .min()
        else {
            return Next::Nothing;
        };
        let idle = self.running() == 0 && !self.entries.iter().any(Entry::is_undecided);
        if self.stopped {
            return if idle {
                Next::Nothing
            } else {
                Next::Wait(None)
            };
        }
        let mut soonest: Option<Instant> = None;
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if entry.record.when != phase || entry.todo.is_empty() {
                continue;
            }
            if let Some(then) = entry.not_before.filter(|then| *then > now) {
                soonest = Some(soonest.map_or(then, |soonest| soonest.min(then)));
                continue;
            }
            if let Some(attempt) = entry.todo.pop_front() {
                entry.running += 1;
                entry.record.state = TaskState::Running;
                return Next::Run(Unit { at, attempt });
            }
        }
        Next::Wait(soonest)
    }

    /// Takes what came of a run.
    pub fn after(&mut self, unit: &Unit, came: Came, now: Instant) -> After {
        let stopped = self.stopped;
        let entry = &mut self.entries[unit.at];
        entry.running -= 1;
        match came {
            Came::Result(run, judged) => drop(entry.done.insert(unit.attempt, (run, judged))),
            Came::Refused(state, why, spent) => {
                entry.before = entry.before.plus(spent);
                entry.fault = Some((state, why));
                // What refuses one attempt refuses all.
                entry.todo.clear();
            }
            Came::Fault(why, spent) => {
                entry.before = entry.before.plus(spent);
                entry.record.tries += 1;
                // Whatever a stop brings about is no fault of the host.
                let state = if stopped {
                    TaskState::Cancelled
                } else {
                    TaskState::Infrastructure
                };
                entry.fault = Some((state, why));
                if entry.record.tries < TRIES && !stopped {
                    let wait = FIRST_WAIT * 4u32.pow(entry.record.tries - 1);
                    entry.todo.push_back(unit.attempt);
                    entry.not_before = Some(now + wait);
                    return After::Again(wait);
                }
                if entry.record.tries >= TRIES {
                    entry.todo.clear();
                }
            }
        }
        if stopped {
            entry.todo.clear();
        }
        if entry.is_undecided() {
            After::Decide
        } else {
            After::More
        }
    }

    /// How long it is, for operators.
    pub fn trace(&self) {
        tracing::debug!(
            waiting = self.entries.iter().map(|own| own.todo.len()).sum::<usize>(),
            starting = self.starting,
            running = self.running(),
            "queue"
        );
    }

    /// Which budget is spent, if any.
    pub fn spent(&self, now: Instant) -> Option<&'static str> {
        let over = |most: Option<u64>, is: u64| most.is_some_and(|most| is >= most);
        let time = self.spent_before + now.saturating_duration_since(self.began);
        let begun = self.entries.iter().filter(|own| own.is_begun()).count();
        let spent = self.entries.iter().map(Entry::spent);
        let spent = spent.fold(Spent::default(), Spent::plus);
        if over(self.budget.time_seconds, time.as_secs()) {
            Some("time")
        } else if over(self.budget.tasks, begun as u64) {
            Some("tasks")
        } else if over(self.budget.tokens, spent.tokens) {
            Some("tokens")
        } else if over(self.budget.cost_micros, spent.cost_micros) {
            Some("cost")
        } else {
            None
        }
    }

    /// Takes out of the queue what was not begun, and says what that is.
    pub fn skip_waiting(&mut self) -> Vec<usize> {
        let mut skipped = Vec::new();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if entry.record.state == TaskState::Waiting {
                entry.todo.clear();
                skipped.push(at);
            }
        }
        skipped
    }
}

impl Entry {
    /// Whether it counts as a task that was begun.
    fn is_begun(&self) -> bool {
        let state = self.record.state;
        self.running > 0
            || !self.done.is_empty()
            || state == TaskState::Running
            || state.is_finished()
            || state == TaskState::Infrastructure
    }

    /// What all runs of it used, in all sittings.
    pub fn spent(&self) -> Spent {
        // What is over has that on record.
        if self.record.state.is_over() {
            return self.record.figures.spent;
        }
        let own = self.done.values().map(|(_, judged)| judged.figures.spent);
        own.fold(self.before, Spent::plus)
    }
}

/// What came of a run.
#[derive(Debug)]
pub(super) enum Came {
    Result(RunId, Judged),
    /// It cannot be run, however often; and what was used all the same.
    Refused(TaskState, String, Spent),
    /// It could not be run this time.
    Fault(String, Spent),
}

#[cfg(test)]
mod tests {
    use ringfence_model::campaign::Figures;
    use ringfence_model::split::When;

    use super::*;

    fn entry(number: u32, when: When, attempts: u32) -> Entry {
        let record = TaskRecord {
            task: format!("{number:016x}"),
            number,
            when,
            state: TaskState::Waiting,
            turn: 1,
            tries: 0,
            run: None,
            why: None,
            files: 1,
            first: "a".into(),
            figures: Figures::default(),
            seen: String::new(),
        };
        Entry::new(record, attempts, RunId::random().unwrap(), BTreeMap::new())
    }

    fn queue(entries: Vec<Entry>, budget: Budget) -> (Queue, Instant) {
        let now = Instant::now();
        (Queue::new(entries, budget, Duration::ZERO, now), now)
    }

    fn passed(tokens: u64) -> Came {
        let figures = Figures {
            spent: Spent {
                tokens,
                cost_micros: 0,
            },
            ..Figures::default()
        };
        let judged = Judged {
            state: TaskState::Passed,
            why: None,
            figures,
            changed: Vec::new(),
        };
        Came::Result(RunId::random().unwrap(), judged)
    }

    fn run(queue: &mut Queue, now: Instant) -> Unit {
        match queue.next(now) {
            Next::Run(unit) => unit,
            other => panic!("{other:?}"),
        }
    }

    fn end(queue: &mut Queue, unit: &Unit, now: Instant) {
        assert_eq!(queue.after(unit, passed(0), now), After::Decide);
        queue.entries[unit.at].record.state = TaskState::Passed;
    }

    #[test]
    fn first_tasks_are_over_before_others_and_last_ones_begin_after() {
        let entries = vec![
            entry(1, When::First, 1),
            entry(2, When::Between, 1),
            entry(3, When::Between, 1),
            entry(4, When::Last, 1),
        ];
        let (mut queue, now) = queue(entries, Budget::default());
        let first = run(&mut queue, now);
        assert_eq!(first.at, 0);
        assert_eq!(queue.next(now), Next::Wait(None));
        end(&mut queue, &first, now);
        let (second, third) = (run(&mut queue, now), run(&mut queue, now));
        assert_eq!((second.at, third.at), (1, 2));
        assert_eq!(queue.next(now), Next::Wait(None));
        end(&mut queue, &third, now);
        assert_eq!(queue.next(now), Next::Wait(None));
        end(&mut queue, &second, now);
        let last = run(&mut queue, now);
        assert_eq!(last.at, 3);
        end(&mut queue, &last, now);
        assert_eq!(queue.next(now), Next::Nothing);
    }

    #[test]
    fn what_is_not_its_fault_is_tried_again_later_and_not_for_ever() {
        let entries = vec![entry(1, When::Between, 1), entry(2, When::Between, 1)];
        let (mut queue, mut now) = queue(entries, Budget::default());
        let unit = run(&mut queue, now);
        let fault = || Came::Fault("no room".to_owned(), Spent::default());
        assert_eq!(queue.after(&unit, fault(), now), After::Again(FIRST_WAIT));
        // Others go on.
        let other = run(&mut queue, now);
        assert_eq!(other.at, 1);
        assert_eq!(queue.next(now), Next::Wait(Some(now + FIRST_WAIT)));
        end(&mut queue, &other, now);
        now += FIRST_WAIT;
        let unit = run(&mut queue, now);
        assert_eq!(
            queue.after(&unit, fault(), now),
            After::Again(FIRST_WAIT * 4)
        );
        now += FIRST_WAIT * 4;
        let unit = run(&mut queue, now);
        assert_eq!(queue.after(&unit, fault(), now), After::Decide);
        assert!(queue.entries[0].fault.is_some() && queue.entries[0].done.is_empty());
    }

    #[test]
    fn a_task_is_decided_on_when_all_attempts_are_over() {
        let (mut queue, now) = queue(vec![entry(1, When::Between, 3)], Budget::default());
        let units: Vec<Unit> = (0..3).map(|_| run(&mut queue, now)).collect();
        assert_eq!(queue.next(now), Next::Wait(None));
        assert_eq!(queue.after(&units[2], passed(0), now), After::More);
        assert_eq!(queue.after(&units[0], passed(0), now), After::More);
        assert_eq!(queue.after(&units[1], passed(0), now), After::Decide);
        assert_eq!(queue.entries[0].done.len(), 3);
    }

    #[test]
    fn a_spent_budget_is_named_and_what_waits_is_skipped() {
        let tasks = |budget| {
            let entries = (1..=4).map(|number| entry(number, When::Between, 1));
            queue(entries.collect(), budget)
        };
        let (mut own, now) = tasks(Budget {
            tasks: Some(2),
            ..Budget::default()
        });
        run(&mut own, now);
        assert_eq!(own.spent(now), None);
        run(&mut own, now);
        assert_eq!(own.spent(now), Some("tasks"));
        assert_eq!(own.skip_waiting(), [2, 3]);
        let (mut own, now) = tasks(Budget {
            tokens: Some(100),
            ..Budget::default()
        });
        let unit = run(&mut own, now);
        own.after(&unit, passed(99), now);
        assert_eq!(own.spent(now), None);
        let unit = run(&mut own, now);
        own.after(&unit, passed(u64::MAX), now);
        assert_eq!(own.spent(now), Some("tokens"));
        // What was used by a run that was stopped, or in an earlier turn, was used.
        let (mut own, now) = tasks(Budget {
            tokens: Some(100),
            ..Budget::default()
        });
        own.entries[0].before.tokens = 50;
        let unit = run(&mut own, now);
        let lost = Spent {
            tokens: 49,
            cost_micros: 0,
        };
        own.after(&unit, Came::Fault("lost".to_owned(), lost), now);
        assert_eq!(own.spent(now), None);
        let unit = run(&mut own, now);
        own.after(&unit, passed(1), now);
        assert_eq!(own.spent(now), Some("tokens"));
        let (own, now) = tasks(Budget {
            time_seconds: Some(60),
            ..Budget::default()
        });
        assert_eq!(own.spent(now + Duration::from_secs(59)), None);
        assert_eq!(own.spent(now + Duration::from_secs(60)), Some("time"));
    }

    #[test]
    fn after_a_stop_nothing_begins_and_what_runs_is_waited_for() {
        let entries = vec![entry(1, When::Between, 2), entry(2, When::Between, 1)];
        let (mut queue, now) = queue(entries, Budget::default());
        let unit = run(&mut queue, now);
        queue.stopped = true;
        assert_eq!(queue.next(now), Next::Wait(None));
        let came = Came::Fault("stopped".to_owned(), Spent::default());
        assert_eq!(queue.after(&unit, came, now), After::Decide);
        let fault = queue.entries[0].fault.as_ref();
        assert!(fault.is_some_and(|(state, _)| *state == TaskState::Cancelled));
        queue.entries[0].record.state = TaskState::Cancelled;
        assert_eq!(queue.next(now), Next::Nothing);
        assert_eq!(queue.entries[1].record.state, TaskState::Waiting);
    }
}

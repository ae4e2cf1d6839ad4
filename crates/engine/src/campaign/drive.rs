//! Driving a campaign: a few threads in one process, one run each, and the store between them and
//! whoever comes after a crash.
//!
//! ```text
//!  lock ─▶ what a dead driver left ─▶ workers take runs from the queue ─▶ report
//!                                     this thread: signals, budgets, wishes of others
//! ```
//!
//! INVARIANT: one process drives a campaign. A task that is finished is never run again by itself.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_jail::signals::{Relay, Signal, Signals};
use ringfence_model::campaign::{Spent, TaskState};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::judge::told;
use super::queue::{After, Came, Entry, Next, Queue, Unit};
use super::report::{Counts, spent_why};
use super::strayed::Owners;
use super::taken::{settle, take_up};
use super::told::{Told, Traced, Watcher};
use super::work::{Piece, Shop};
use super::{CampaignError, Typed, request};
use crate::error::Error;
use crate::fail;
use crate::home::Home;
use crate::lock::{Counted, FileLock};
use crate::run::Attempt;
use crate::store::{CampaignRecord, Store, TaskRecord};

/// BOUND: how often this thread looks around; a table is drawn as often.
const TICK: Duration = Duration::from_millis(100);
/// BOUND: how often the wishes of others are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// BOUND: no further run begins while the host has less memory than this for anybody.
const LEAST_MEMORY: u64 = 256 << 20;
/// BOUND: what a task may have where nobody bounds it, however many there are.
const LEAST_USUAL: u64 = 1 << 30;
/// BOUND: runs that are being started at once, for each processor. To start one is work for
/// processors and disk; a thousand at once would only stand in each other's way.
const STARTING: usize = 2;
/// BOUND: of a worker; a thousand of them are no load.
const STACK: usize = 2 << 20;

/// What a campaign is driven with.
pub struct Driving<'a> {
    pub home: &'a Home,
    pub store: &'a Store,
    /// What tasks do not say themselves.
    pub typed: Typed,
    pub watcher: &'a dyn Watcher,
    /// Held before any other thread was there.
    pub signals: &'a Signals,
    pub host: HostSize,
    /// Tasks that ended without success are begun anew.
    pub again: Again,
}

/// What there is to be shared.
#[derive(Clone, Copy, Debug)]
pub struct HostSize {
    pub cores: usize,
    pub memory_bytes: u64,
}

/// Which tasks that are finished are begun anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Again {
    #[default]
    Nothing,
    /// Those that did not pass.
    Unsuccessful,
}

impl std::fmt::Debug for Driving<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driving").finish_non_exhaustive()
    }
}

/// How a sitting ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub counts: Counts,
    /// Somebody stopped it.
    pub stopped: bool,
}

/// Works on a campaign until nothing is left to do, or somebody stops it.
pub fn drive(driving: Driving<'_>, campaign: &CampaignRecord) -> Result<Ended, Error> {
    let (home, store) = (driving.home, driving.store);
    let span = tracing::info_span!("campaign", id = %campaign.id, name = ?campaign.name);
    let _inside = span.enter();
    let path = home.campaign_lock(campaign.id);
    let uncounted = FileLock::uncounted(&path);
    let Some(lock) = FileLock::take(&path)? else {
        return Err(CampaignError::Driven(campaign.name.clone()).into());
    };
    // An earlier driver may have died before it recorded how long it worked.
    let uncounted = uncounted.as_millis() as u64;
    store.drove_campaign(campaign.id, uncounted)?;
    lock.beat(Counted::ToNow);
    store.take_up_campaign(campaign.id, campaign.settings)?;
    fail::point("campaign:locked");
    settle(home, store)?;
    let entries = take_up(&driving, campaign)?;
    fail::point("campaign:settled");
    let (parallel, memory, note) = share(&driving, campaign, &entries)?;
    raise_files();
    let Driving {
        mut typed,
        watcher,
        signals,
        host,
        ..
    } = driving;
    typed.usual.memory_bytes = memory;
    let watcher = &Traced(watcher);
    if let Some(note) = note {
        watcher.told(&Told::Note { note: &note });
    }
    let records: Vec<TaskRecord> = entries.iter().map(|own| own.record.clone()).collect();
    watcher.told(&Told::Begun {
        campaign: &campaign.name,
        tasks: &records,
        parallel,
    });
    let owners = Owners::of(store, campaign, records.iter())?;
    let spent = Duration::from_millis(campaign.driven_ms + uncounted);
    let left = entries.iter().filter(|own| !own.record.state.is_over());
    let units: usize = left.map(|own| own.attempts as usize).sum();
    let (done, wake) = Signals::relayed().map_err(Error::Wait)?;
    let pairs = (0..parallel.min(units)).map(|_| Signals::relayed());
    let pairs: Result<Vec<_>, _> = pairs.collect();
    let (relayed, relays): (Vec<_>, Vec<_>) = pairs.map_err(Error::Wait)?.into_iter().unzip();
    let floor = Floor {
        queue: Mutex::new(Queue::new(
            entries,
            campaign.settings.budget,
            spent,
            Instant::now(),
        )),
        changed: Condvar::new(),
        relays,
        starting: STARTING * host.cores.max(1),
        counted: Mutex::new(Instant::now()),
        lock: &lock,
        shop: Shop {
            home,
            campaign,
            typed: &typed,
            watcher,
            owners: &owners,
        },
        wake,
    };
    // All their runs were over when an earlier driver ended.
    for at in floor.undecided() {
        floor.decide(store, at);
    }
    std::thread::scope(|scope| -> Result<(), Error> {
        let mut begun = 0;
        for signals in relayed {
            let builder = std::thread::Builder::new().stack_size(STACK);
            match builder.spawn_scoped(scope, || span.in_scope(|| floor.work(signals))) {
                Ok(_) => begun += 1,
                // Fewer do it as well; none at all is said.
                Err(source) if begun == 0 => return Err(Error::Wait(source)),
                Err(_) => break,
            }
        }
        floor.attend(store, signals, &done, begun);
        Ok(())
    })?;
    let queue = floor.lock();
    let counts = Counts::of(queue.entries.iter().map(|own| &own.record));
    watcher.told(&Told::Ended { counts: &counts });
    let stopped = queue.stopped;
    drop(queue);
    drop(lock);
    Ok(Ended { counts, stopped })
}

/// How many at once, and how much memory each may have where nobody says it.
fn share(
    driving: &Driving<'_>,
    campaign: &CampaignRecord,
    entries: &[Entry],
) -> Result<(usize, Option<u64>, Option<String>), Error> {
    let total = driving.host.memory_bytes;
    let usual = driving.typed.usual.memory_bytes;
    let mut limit = None;
    if let Some(entry) = entries.iter().find(|own| !own.record.state.is_over()) {
        let task = driving.store.task_document(campaign, &entry.record.task)?;
        // What is wrong with it is told when it is its turn.
        let made = request(driving.home, &task, "campaign".as_ref(), &driving.typed);
        limit = made.ok().and_then(|request| request.limits.memory_bytes);
    }
    let explicit = limit.filter(|limit| Some(*limit) != usual);
    let fits = (total / explicit.unwrap_or(LEAST_USUAL).max(1)).max(1);
    let fits = usize::try_from(fits).unwrap_or(usize::MAX);
    let parallel = match campaign.settings.parallel {
        Some(wanted) => wanted as usize,
        None => driving.host.cores.min(fits),
    }
    .max(1);
    let memory = usual.map(|usual| usual.min((total / 2 / parallel as u64).max(LEAST_USUAL)));
    let note = explicit.filter(|_| parallel > fits).map(|limit| {
        format!(
            "{parallel} tasks at once may use more memory together than this host has ({} each)",
            ringfence_model::limits::HumanBytes(limit)
        )
    });
    Ok((parallel, memory, note))
}

/// Each run needs some dozen files: the bound that the kernel has for this process is used.
fn raise_files() {
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    // Where that is refused, as many run as can.
    let _ = setrlimit(Resource::Nofile, files);
}

/// Where the work is done.
struct Floor<'a> {
    queue: Mutex<Queue>,
    /// Something ended, or nothing more is to begin.
    changed: Condvar,
    /// How each worker is told to stop.
    relays: Vec<Relay>,
    /// How many may be started at once.
    starting: usize,
    /// Up to when the time that is worked on it was recorded.
    counted: Mutex<Instant>,
    lock: &'a FileLock,
    shop: Shop<'a>,
    /// A worker went home.
    wake: Relay,
}

impl Floor<'_> {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing in there is half done: a run that panics does not hold it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn undecided(&self) -> Vec<usize> {
        let queue = self.lock();
        let found = queue.entries.iter().enumerate();
        let found = found.filter(|(_, entry)| entry.is_undecided());
        found.map(|(at, _)| at).collect()
    }

    /// One worker, until there is nothing more to do.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a worker that goes home closes what it was told to stop by"
    )]
    fn work(&self, signals: Signals) {
        match Store::open(self.shop.home) {
            Ok(store) => {
                while let Some((unit, piece)) = self.take() {
                    let told = Cell::new(false);
                    let started = || {
                        if !told.replace(true) {
                            self.started()
                        }
                    };
                    let one = || self.one(&store, &piece, &signals, &started);
                    let made = catch_unwind(AssertUnwindSafe(one));
                    started();
                    let came = made.unwrap_or_else(|_| {
                        Came::Fault("a defect of ours".to_owned(), Spent::default())
                    });
                    self.put_away(&store, &unit, came);
                }
            }
            Err(error) => {
                let note = format!("one worker less: {}", told(&error));
                self.shop.watcher.told(&Told::Note { note: &note });
            }
        }
        self.wake.interrupt();
    }

    /// The next run, when there is one. Waits for it.
    fn take(&self) -> Option<(Unit, Piece)> {
        let mut queue = self.lock();
        loop {
            let now = Instant::now();
            if let Some(budget) = queue.spent(now) {
                self.skip(&mut queue, budget);
            }
            let full = queue.starting >= self.starting && !queue.stopped;
            let wait = match self.has_memory(&queue) {
                _ if full => None,
                false => Some(TICK),
                true => match queue.next(now) {
                    Next::Nothing => {
                        self.changed.notify_all();
                        return None;
                    }
                    Next::Wait(then) => then.map(|then| then.saturating_duration_since(now)),
                    Next::Run(unit) => {
                        let entry = &queue.entries[unit.at];
                        let attempt = (entry.attempts > 1).then_some(Attempt {
                            group: entry.group,
                            number: unit.attempt,
                            of: entry.attempts,
                        });
                        let record = entry.record.clone();
                        queue.starting += 1;
                        queue.trace();
                        // All who wait are equal: one more looks whether there is more to do.
                        self.changed.notify_one();
                        return Some((unit, Piece { record, attempt }));
                    }
                },
            };
            queue = match wait {
                // Longer is never needed, and a clock that jumps does no harm.
                Some(wait) => {
                    let waited = self.changed.wait_timeout(queue, wait.max(TICK / 10));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(queue);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    /// Whether the host bears one more. The first one always runs.
    fn has_memory(&self, queue: &Queue) -> bool {
        queue.running() == 0 || available_memory().is_none_or(|bytes| bytes >= LEAST_MEMORY)
    }

    fn one(&self, store: &Store, piece: &Piece, signals: &Signals, started: &dyn Fn()) -> Came {
        let record = &piece.record;
        let id = self.shop.campaign.id;
        if let Err(error) = store.begin_task(id, &record.task, record.turn, record.tries) {
            return Came::Fault(told(&error), Spent::default());
        }
        fail::point("campaign:begun");
        self.shop.watcher.told(&Told::Task {
            task: &record.task,
            number: record.number,
            attempt: piece.attempt.as_ref().map_or(1, |own| own.number),
            of: piece.attempt.as_ref().map_or(1, |own| own.of),
        });
        let came = self.shop.make(store, piece, signals, started);
        fail::point("campaign:ran");
        came
    }

    /// A run is under way: the next one can be started.
    fn started(&self) {
        self.lock().starting -= 1;
        self.changed.notify_one();
    }

    /// Takes what came of a run, and decides on its task where that was the last one.
    fn put_away(&self, store: &Store, unit: &Unit, came: Came) {
        let why = match &came {
            Came::Fault(why, _) => why.clone(),
            _ => String::new(),
        };
        let mut queue = self.lock();
        let after = queue.after(unit, came, Instant::now());
        let record = queue.entries[unit.at].record.clone();
        drop(queue);
        match after {
            After::More => {}
            After::Again(wait) => self.shop.watcher.told(&Told::Retry {
                task: &record.task,
                number: record.number,
                after_seconds: wait.as_secs(),
                why: &why,
            }),
            After::Decide => self.decide(store, unit.at),
        }
        self.changed.notify_one();
    }

    fn decide(&self, store: &Store, at: usize) {
        let entry = self.lock().entries[at].clone();
        let decided = self.shop.decide(store, &entry);
        self.becomes(store, at, &decided);
    }

    /// The one place where a task becomes something else.
    fn becomes(&self, store: &Store, at: usize, record: &TaskRecord) {
        self.lock().entries[at].record = record.clone();
        fail::point("campaign:decided");
        if let Err(error) = store.end_task(self.shop.campaign.id, record) {
            // The next driver finds it by its runs.
            let note = format!(
                "task {}: its end could not be recorded: {}",
                record.number,
                told(&error)
            );
            self.shop.watcher.told(&Told::Note { note: &note });
        }
        self.shop.watcher.told(&Told::Over { task: record });
        self.count_time(store);
        fail::point("campaign:told");
    }

    /// Records how long it was worked on since that was recorded last.
    fn count_time(&self, store: &Store) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let spent = counted.elapsed();
        *counted += spent;
        drop(counted);
        // A disk that is full does not stop what runs.
        let drove = store.drove_campaign(self.shop.campaign.id, spent.as_millis() as u64);
        if drove.is_ok() {
            self.lock.beat(Counted::ToNow);
        }
    }

    /// What was not begun is skipped: a budget is spent.
    fn skip(&self, queue: &mut Queue, budget: &str) {
        let why = spent_why(budget);
        let skipped = queue.skip_waiting();
        if skipped.is_empty() {
            return;
        }
        self.shop.watcher.told(&Told::Stopping { why: &why });
        for at in skipped {
            let record = &mut queue.entries[at].record;
            record.state = TaskState::Skipped;
            record.why = Some(why.clone());
        }
    }

    /// This thread, while others work: signals, the wishes of others, the clock.
    fn attend(&self, store: &Store, signals: &Signals, done: &Signals, workers: usize) {
        let (mut home, mut looked) = (0, Instant::now());
        // INVARIANT: this thread only reads the store: it never waits behind those who write.
        let mut asked = false;
        while home < workers {
            let mut waits = [
                PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(done.fd(), PollFlags::IN),
            ];
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: TICK.as_nanos() as i64,
            };
            // Interrupted or not, everything is looked at.
            let _ = rustix::event::poll(&mut waits, Some(&timeout));
            while done.take().is_some() {
                home += 1;
            }
            while let Some(signal) = signals.take() {
                if signal != Signal::WINDOW {
                    self.stop("you stopped it");
                }
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.lock.beat(Counted::NotYet);
                let id = self.shop.campaign.id;
                if !asked && store.is_campaign_to_stop(id).unwrap_or(false) {
                    asked = true;
                    self.stop("somebody asked for it");
                }
            }
            self.shop.watcher.tick();
        }
        self.close(store);
        self.count_time(store);
    }

    /// Records what was skipped, and that what was to be tried again waits.
    fn close(&self, store: &Store) {
        let mut left = Vec::new();
        for (at, entry) in self.lock().entries.iter_mut().enumerate() {
            let record = &mut entry.record;
            if record.state == TaskState::Running {
                record.state = TaskState::Waiting;
                record.figures.spent = entry.before;
                left.push((at, record.clone()));
            } else if record.state == TaskState::Skipped {
                left.push((at, record.clone()));
            }
        }
        for (at, record) in left {
            self.becomes(store, at, &record);
        }
    }

    /// Nothing more begins, and what runs is asked to end; once more means harder.
    fn stop(&self, why: &str) {
        let mut queue = self.lock();
        if !queue.stopped {
            queue.stopped = true;
            self.shop.watcher.told(&Told::Stopping { why });
        }
        drop(queue);
        for relay in &self.relays {
            relay.interrupt();
        }
        self.changed.notify_all();
    }
}

/// What the kernel would give to somebody who asks now.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|own| own.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

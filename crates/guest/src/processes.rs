//! What runs inside: who descends from whom, and what all of it uses, read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use ringfence_model::ByteText;
use ringfence_model::limits::HumanBytes;
use ringfence_model::wire::{Bound, Hello, Leftover, Usage};
use rustix::process::{Pid, Signal};

use crate::freeze::World;

/// One process as `/proc/N/stat` shows it.
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    threads: u64,
    own_ticks: u64,
    /// Its own processor time and that of the children it has waited for.
    ticks: u64,
    resident_pages: u64,
    /// In ticks since the machine started.
    pub started: u64,
    pub zombie: bool,
    pub stopped: bool,
    /// How it ended, as `wait` says it; zero while it runs, and for those who may not know.
    status: i32,
}

/// BOUND: how finely the kernel counts processor time.
const TICK_US: u64 = 10_000;

impl Process {
    /// How it ended, where it has.
    pub fn status(&self) -> Option<i32> {
        self.zombie.then_some(self.status)
    }

    fn resident_bytes(&self) -> u64 {
        self.resident_pages * rustix::param::page_size() as u64
    }

    /// Its own processor time.
    pub fn cpu_us(&self) -> u64 {
        self.own_ticks * TICK_US
    }
}

pub fn all() -> Vec<Process> {
    pids().filter_map(read).collect()
}

/// Everybody, by number alone.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// One process, if it is there.
pub fn read(pid: i32) -> Option<Process> {
    parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    // HOSTILE: the name in parentheses may hold anything, also parentheses and spaces.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 2..)?).ok()?.trim_end();
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |field: usize| {
        fields
            .get(field - 3)
            .and_then(|text| text.parse::<u64>().ok())
    };
    let threads = number(20)?;
    let mut resident_pages = number(24)?;
    // Dead, where its parent is just taking note of its end.
    let mut zombie = matches!(fields.first(), Some(&("Z" | "X")));
    // A process whose first thread has ended looks dead, and lives on in its others.
    if zombie && threads > 1 {
        zombie = false;
        resident_pages = resident_of_threads(pid);
    }
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        threads,
        own_ticks: number(14)? + number(15)?,
        ticks: number(14)? + number(15)? + number(16)? + number(17)?,
        resident_pages,
        started: number(22)?,
        zombie,
        stopped: fields.first() == Some(&"T"),
        status: number(52)? as i32,
    })
}

/// Resident pages as a living thread of a process shows them.
fn resident_of_threads(pid: i32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    threads
        .filter_map(|entry| fs::read_to_string(entry.path().join("statm")).ok())
        .filter_map(|statm| statm.split(' ').nth(1)?.parse().ok())
        .max()
        .unwrap_or(0)
}

/// Everything below a process, among these.
pub fn below(all: &[Process], root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in all {
        children
            .entry(process.parent)
            .or_default()
            .push(process.pid);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for &child in children.get(&pid).into_iter().flatten() {
            found.push(child);
            open.push(child);
        }
    }
    found
}

/// Everything below a process.
pub fn descendants(root: i32) -> Vec<i32> {
    below(&all(), root)
}

pub fn send(pid: i32, signal: Signal) {
    // Gone already is as good.
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// When a process was started.
pub fn started(pid: i32) -> Option<u64> {
    read(pid).map(|process| process.started)
}

/// Everything in this namespace but pid 1, as the kernel counts it: nothing forks past it.
pub fn signal_all(signal: Signal) {
    // The group of pid 1, negated, is what kill(2) calls everybody. Nobody there is as good.
    let _ = rustix::process::kill_process_group(Pid::INIT, signal);
}

/// Stops everything. Answers which of these, who were there before, had stopped already.
pub fn stop_all(before: &[Process]) -> Vec<i32> {
    signal_all(Signal::STOP);
    let stopped = before.iter().filter(|process| process.stopped);
    stopped.map(|process| process.pid).collect()
}

/// Lets everything go on but what had stopped before.
pub fn go_on(stopped_before: &[i32]) {
    if stopped_before.is_empty() {
        signal_all(Signal::CONT);
        return;
    }
    for process in all() {
        if process.pid != 1 && !stopped_before.contains(&process.pid) {
            send(process.pid, Signal::CONT);
        }
    }
}

/// Stops and kills everything below a warden; what was forked meanwhile is met by the next call.
/// A warden with nothing left below it goes as well: an agent with its uid may have stopped it.
/// Where everything stands still, it goes when that is over.
pub fn kill_all(warden: i32, world: World) {
    let all = all();
    let found = below(&all, warden);
    for &pid in &found {
        send(pid, Signal::STOP);
    }
    for &pid in &found {
        send(pid, Signal::KILL);
    }
    let stopped = all
        .iter()
        .any(|process| process.pid == warden && process.stopped);
    if stopped && world == World::Moves {
        send(warden, Signal::CONT);
    }
}

/// What an exec left running, named.
pub fn leftovers(warden: i32, bound: usize) -> Vec<Leftover> {
    let all = all();
    let alive = |pid: &i32| {
        all.iter()
            .any(|process| process.pid == *pid && !process.zombie)
    };
    below(&all, warden)
        .into_iter()
        .filter(alive)
        .take(bound)
        .map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // HOSTILE: an agent writes its own command line; 256 bytes say enough.
            let line: Vec<u8> = line
                .iter()
                .take(256)
                .map(|&b| if b == 0 { b' ' } else { b })
                .collect();
            Leftover {
                pid,
                command: ByteText(line.trim_ascii_end().to_vec()),
            }
        })
        .collect()
}

/// What everything inside uses, files without a name included.
pub fn usage() -> Usage {
    let all = all();
    let nameless = nameless(&all);
    Usage {
        processes: all.iter().map(|process| process.threads).sum(),
        wardens: all.iter().filter(|process| is_warden(process)).count() as u64,
        memory_bytes: resident(&all) + nameless.memory + scratch(),
        cpu_ms: all.iter().map(|process| process.ticks).sum::<u64>() * 1000 / ticks_per_second(),
        unlinked_bytes: nameless.disk,
        hidden_processes: nameless.hidden,
    }
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

fn resident(all: &[Process]) -> u64 {
    all.iter()
        .filter(|process| process.pid != 1)
        .map(Process::resident_bytes)
        .sum()
}

/// What is resident, shared pages counted in parts.
#[derive(Clone, Copy, Default)]
struct Exact {
    /// Of processes: their own pages, and those of files on a disk.
    own: u64,
    /// Of shared memory and of files in memory, as far as it is mapped.
    shared: u64,
}

impl Exact {
    fn of(all: &[Process]) -> Self {
        let mut sum = Self::default();
        for process in all.iter().filter(|process| process.pid != 1) {
            let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid));
            let rollup = rollup.ok().filter(|text| !text.is_empty());
            let part = match rollup.as_deref().map(|text| (kib(text, "Pss:"), text)) {
                Some((Some(all), text)) => {
                    let shared = kib(text, "Pss_Shmem:").unwrap_or(0).min(all);
                    Self {
                        own: all - shared,
                        shared,
                    }
                }
                // Who ended meanwhile has nothing; who cannot be looked into has all that is told of it.
                _ => Self {
                    own: read(process.pid).map_or(0, |again| again.resident_bytes()),
                    shared: 0,
                },
            };
            sum.own += part.own;
            sum.shared += part.shared;
        }
        sum
    }

    /// All of it, with what is in files in memory: they may be mapped or not, and count once.
    fn with_files(self, in_memory: u64) -> u64 {
        self.own + self.shared.max(in_memory)
    }
}

fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// BOUND: descriptors and mappings looked at in one go; pid 1 has other things to do.
const LOOKED_AT: usize = 20_000;

/// Files that are open or mapped but have no name.
#[derive(Default)]
struct Nameless {
    /// In memory files.
    memory: u64,
    /// In memory that processes share, at most: how much of it was touched, nobody tells.
    shared: u64,
    /// In files that were deleted and still hold space.
    disk: u64,
    /// Processes that could not be looked at.
    hidden: u64,
}

fn nameless(all: &[Process]) -> Nameless {
    let mut seen: BTreeMap<(u64, u64), (Where, u64)> = BTreeMap::new();
    let mut found = Nameless::default();
    let mut left = LOOKED_AT;
    for process in all
        .iter()
        .filter(|process| process.pid != 1 && !process.zombie)
    {
        let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", process.pid)) else {
            found.hidden += u64::from(
                fs::exists(format!("/proc/{}", process.pid)).unwrap_or(false)
                    && !is_warden(process),
            );
            continue;
        };
        for entry in entries.flatten() {
            left = left.saturating_sub(1);
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let target = target.to_string_lossy();
            let is_memory = target.starts_with("/memfd:");
            if (is_memory || target.ends_with(" (deleted)"))
                && let Ok(metadata) = fs::metadata(entry.path())
            {
                let place = if is_memory {
                    Where::Memory
                } else {
                    Where::Disk
                };
                seen.insert(
                    (metadata.dev(), metadata.ino()),
                    (place, metadata.blocks() * 512),
                );
            }
        }
        // What is mapped and not open any more: as large as the mapping at most.
        for line in fs::read_to_string(format!("/proc/{}/maps", process.pid))
            .unwrap_or_default()
            .lines()
        {
            left = left.saturating_sub(1);
            if let Some((key, place, bytes)) = deleted_mapping(line) {
                let known = seen.entry(key).or_insert((place, 0));
                known.1 = known.1.max(bytes);
            }
        }
        if left == 0 {
            // HOSTILE: whoever has so many may hide others behind them.
            found.hidden += 1;
            break;
        }
    }
    for (place, bytes) in seen.into_values() {
        match place {
            Where::Memory => found.memory += bytes,
            Where::Shared => found.shared += bytes,
            Where::Disk => found.disk += bytes,
        }
    }
    found
}

/// A child of pid 1 is a warden, which hides itself as pid 1 does.
fn is_warden(process: &Process) -> bool {
    process.parent == 1 && process.threads == 1 && process.resident_pages < 1024
}

/// Where a file without a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Memory,
    /// Made by a mapping that is shared and of no file.
    Shared,
    Disk,
}

/// `begin-end perms offset major:minor inode path (deleted)` of a shared mapping. The file has what is before the
/// mapping's end as well, whether that is still mapped or not.
fn deleted_mapping(line: &str) -> Option<((u64, u64), Where, u64)> {
    if !line.ends_with(" (deleted)") {
        return None;
    }
    let mut fields = line.split_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    let shared = fields.next()?.ends_with('s');
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let place = match fields.next()? {
        path if path.starts_with("/memfd:") => Where::Memory,
        "/dev/zero" => Where::Shared,
        _ => Where::Disk,
    };
    let device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
    let bytes = (hex(end)? - hex(begin)?).saturating_add(offset);
    shared.then_some(((device, inode), place, bytes))
}

/// The kernel's number for a file system in memory.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Memory in the temporary file systems and in System V segments.
fn scratch() -> u64 {
    let used = |path: &str| {
        // Where the home and temporary files last, they are on a disk.
        let in_memory = rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == TMPFS);
        let stat = rustix::fs::statvfs(path).ok().filter(|_| in_memory);
        stat.map_or(0, |stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize)
    };
    let segments: u64 = fs::read_to_string("/proc/sysvipc/shm")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(14)?.parse::<u64>().ok())
        .sum();
    let messages: u64 = fs::read_to_string("/proc/sysvipc/msg")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok())
        .sum();
    used("/tmp") + used("/dev/shm") + used("/home/agent") + segments + messages
}

/// Page tables: an agent can make them larger than what they map.
fn page_tables(all: &[Process]) -> u64 {
    all.iter()
        .filter_map(|process| fs::read_to_string(format!("/proc/{}/status", process.pid)).ok())
        .filter_map(|text| kib(&text, "VmPTE:"))
        .sum()
}

/// Looks at what is used against the bounds, again and again.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// The most processor time that was ever seen, that of children who were waited for included.
    ticks: u64,
    /// Each process's own, the last time it was seen, and what the dead took with them: children of
    /// a parent that does not wait are in nobody's account.
    own: BTreeMap<i32, u64>,
    dead: u64,
    /// The machine's shared memory and page tables before any command: growth may be ours.
    before: u64,
}

impl Watchdog {
    /// Before any command.
    pub fn begin(&mut self) {
        self.before = unowned();
    }

    /// The bounds that are met, and by how much. Wardens that an agent stopped go on.
    pub fn look(&mut self, all: &[Process], hello: &Hello, world: World) -> Vec<(Bound, String)> {
        for process in all
            .iter()
            .filter(|process| process.stopped && process.parent == 1 && world == World::Moves)
        {
            send(process.pid, Signal::CONT);
        }
        let mut met = Vec::new();
        if let Some(memory) = &hello.memory {
            met.extend(self.look_at_memory(all, memory.limit_bytes));
        }
        if let Some(seconds) = hello.cpu_seconds {
            self.count(all);
            let used = self.ticks / ticks_per_second();
            if used >= seconds {
                met.push((
                    Bound::Cpu,
                    format!("{used} s of processor time used, {seconds} s allowed"),
                ));
            }
        }
        met.extend(crowd(all, hello, 0));
        met
    }

    fn count(&mut self, all: &[Process]) {
        let now: BTreeMap<i32, u64> = all.iter().map(|p| (p.pid, p.own_ticks)).collect();
        for (pid, ticks) in &self.own {
            if now.get(pid).is_none_or(|again| again < ticks) {
                self.dead += ticks;
            }
        }
        let own = self.dead + now.values().sum::<u64>();
        let waited = all.iter().map(|process| process.ticks).sum::<u64>();
        self.own = now;
        self.ticks = self.ticks.max(own).max(waited);
    }

    fn look_at_memory(&mut self, all: &[Process], limit: u64) -> Option<(Bound, String)> {
        let growth = unowned().saturating_sub(self.before);
        let mut unseen = 0;
        if growth > limit / 8 {
            let nameless = nameless(all);
            // Where we cannot look, what grew meanwhile is the sandbox's.
            unseen = nameless.memory + nameless.shared.min(growth) + page_tables(all);
            if nameless.hidden > 0 {
                unseen = unseen.max(growth);
            }
        }
        let mut used = resident(all) + scratch() + unseen;
        // Shared pages count once: look exactly before anything is ended. Those who come and go meanwhile count
        // in more than one place, and not twice in the same.
        for _ in 0..2 {
            if used > limit {
                used = used.min(Exact::of(all).with_files(scratch() + unseen));
            }
        }
        (used > limit).then(|| {
            (
                Bound::Memory,
                format!("{} in use, {} allowed", HumanBytes(used), HumanBytes(limit)),
            )
        })
    }
}

/// The machine's shared memory and page tables.
fn unowned() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib(&machine, "Shmem:").unwrap_or(0) + kib(&machine, "PageTables:").unwrap_or(0)
}

/// Whether there are as many processes as there may be.
pub fn is_crowded(hello: &Hello) -> Option<(Bound, String)> {
    // The leader and what it waited for have just gone.
    crowd(&all(), hello, 2)
}

fn crowd(all: &[Process], hello: &Hello, gone: u64) -> Option<(Bound, String)> {
    let threads: u64 = all.iter().map(|process| process.threads).sum();
    (threads + gone >= hello.processes).then(|| {
        (
            Bound::Processes,
            format!(
                "{threads} processes and threads, {} allowed",
                hello.processes
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_are_being_reaped_are_dead() {
        for (state, dead) in [("R", false), ("S", false), ("Z", true), ("X", true)] {
            let zeros = "0 ".repeat(48);
            let stat = format!("7 (a) b) {state} 1 7 7 {zeros}0");
            let process = parse(7, stat.as_bytes()).unwrap();
            assert_eq!(process.zombie, dead, "{state}");
        }
        assert!(parse(7, b"7 (cut").is_none());
    }
}

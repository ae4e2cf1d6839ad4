//! What runs inside: who descends from whom, and what all of it uses, read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use ringfence_model::ByteText;
use ringfence_model::limits::HumanBytes;
use ringfence_model::wire::{Bound, Hello, Leftover, Usage};
use rustix::process::{Pid, Signal};

/// One process as `/proc/N/stat` shows it.
struct Process {
    pid: i32,
    parent: i32,
    threads: u64,
    ticks: u64,
    resident_pages: u64,
    zombie: bool,
}

fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(read)
        .collect()
}

fn read(pid: i32) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // HOSTILE: the name in parentheses may hold anything, also parentheses and spaces.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 2..)?).ok()?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |field: usize| {
        fields
            .get(field - 3)
            .and_then(|text| text.parse::<u64>().ok())
    };
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        threads: number(20)?,
        ticks: number(14)? + number(15)?,
        resident_pages: number(24)?,
        zombie: fields.first() == Some(&"Z"),
    })
}

fn below(all: &[Process], root: i32) -> Vec<i32> {
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

/// Stops and kills everything below a process; what was forked meanwhile is met by the next call.
pub fn kill_all(root: i32) {
    let found = descendants(root);
    for &pid in &found {
        send(pid, Signal::STOP);
    }
    for &pid in &found {
        send(pid, Signal::KILL);
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
    Usage {
        processes: all.iter().map(|process| process.threads).sum(),
        memory_bytes: resident(&all) + nameless(&all, Nameless::Memory) + scratch(),
        cpu_ms: all.iter().map(|process| process.ticks).sum::<u64>() * 1000 / ticks_per_second(),
        unlinked_bytes: nameless(&all, Nameless::Disk),
    }
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

fn resident(all: &[Process]) -> u64 {
    let pages: u64 = all
        .iter()
        .filter(|process| process.pid != 1)
        .map(|process| process.resident_pages)
        .sum();
    pages * rustix::param::page_size() as u64
}

/// Memory that belongs to somebody alone: what is shared with others is counted in parts.
fn resident_exact(all: &[Process]) -> u64 {
    all.iter()
        .filter(|process| process.pid != 1)
        .map(|process| {
            let exact = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid))
                .ok()
                .and_then(|text| kib(&text, "Pss:"));
            exact.unwrap_or(process.resident_pages * rustix::param::page_size() as u64)
        })
        .sum()
}

fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

#[derive(Clone, Copy, PartialEq)]
enum Nameless {
    Memory,
    Disk,
}

/// Files that are open but have no name: memory files, and deleted ones that still hold space.
fn nameless(all: &[Process], which: Nameless) -> u64 {
    let mut seen: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for process in all.iter().filter(|process| process.pid != 1) {
        let directory = format!("/proc/{}/fd", process.pid);
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else {
                continue;
            };
            let target = target.to_string_lossy();
            let memory = target.starts_with("/memfd:");
            let deleted = !memory && target.ends_with(" (deleted)");
            let wanted = match which {
                Nameless::Memory => memory,
                Nameless::Disk => deleted,
            };
            if wanted && let Ok(metadata) = fs::metadata(entry.path()) {
                seen.insert((metadata.dev(), metadata.ino()), metadata.blocks() * 512);
            }
        }
    }
    seen.values().sum()
}

/// Memory in the temporary file systems and in System V segments.
fn scratch() -> u64 {
    let used = |path: &str| {
        rustix::fs::statvfs(path).map_or(0, |stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize)
    };
    let segments: u64 = fs::read_to_string("/proc/sysvipc/shm")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(14)?.parse::<u64>().ok())
        .sum();
    used("/tmp") + used("/dev/shm") + used("/home/agent") + segments
}

/// Looks at what is used against the bounds, again and again.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// Processor ticks of processes, the last time each was seen.
    ticks: BTreeMap<i32, u64>,
    ticks_of_the_dead: u64,
    /// The whole machine's shared memory at the first look: growth may be ours.
    shared_before: Option<u64>,
}

impl Watchdog {
    /// The bound that is met, and by how much.
    pub fn look(&mut self, hello: &Hello) -> Option<(Bound, String)> {
        let all = all();
        let shared = fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| kib(&text, "Shmem:"))
            .unwrap_or(0);
        let before = *self.shared_before.get_or_insert(shared);
        if let Some(memory) = &hello.memory {
            let limit = memory.limit_bytes;
            let mut used = resident(&all) + scratch();
            if shared.saturating_sub(before) > limit / 8 {
                used += nameless(&all, Nameless::Memory);
            }
            if used > limit {
                // Shared pages count once: look exactly before anything is ended.
                used = resident_exact(&all) + scratch() + nameless(&all, Nameless::Memory);
            }
            if used > limit {
                let detail = format!("{} in use, {} allowed", HumanBytes(used), HumanBytes(limit));
                return Some((Bound::Memory, detail));
            }
        }
        if let Some(seconds) = hello.cpu_seconds {
            let used = self.count_ticks(&all) / ticks_per_second();
            if used >= seconds {
                return Some((
                    Bound::Cpu,
                    format!("{used} s of processor time used, {seconds} s allowed"),
                ));
            }
        }
        let threads: u64 = all.iter().map(|process| process.threads).sum();
        if threads >= hello.processes {
            let detail = format!(
                "{threads} processes and threads, {} allowed",
                hello.processes
            );
            return Some((Bound::Processes, detail));
        }
        None
    }

    fn count_ticks(&mut self, all: &[Process]) -> u64 {
        let now: BTreeMap<i32, u64> = all
            .iter()
            .map(|process| (process.pid, process.ticks))
            .collect();
        for (pid, ticks) in &self.ticks {
            if now.get(pid).is_none_or(|again| again < ticks) {
                self.ticks_of_the_dead += ticks;
            }
        }
        self.ticks = now;
        self.ticks_of_the_dead + self.ticks.values().sum::<u64>()
    }
}

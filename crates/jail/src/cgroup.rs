//! Limits by cgroup, version 1 and 2, where this caller may make one.
//!
//! Whether that is so is found by doing it. What cannot be made here is watched by other means,
//! and the result says which.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

/// What a cgroup shall hold the sandbox to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
}

/// What happened in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupEvents {
    pub memory_kills: u64,
    pub process_refusals: u64,
}

/// The cgroup of one sandbox. Dropping it removes it.
#[derive(Debug)]
pub struct Cgroup {
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    directory: PathBuf,
    holds: Holds,
    /// Version 2: the sandbox is born in it.
    birth: Option<OwnedFd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Memory,
    Processes,
    Both,
}

impl Cgroup {
    /// Makes a cgroup with these limits, as far as this caller may; `None` where it may not at all.
    pub fn create(name: &str, limits: &CgroupLimits) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mut places = Vec::new();
        if let Some(place) = create_v2(&mounts, &own, name, limits) {
            places.push(place);
        } else {
            if let Some(bytes) = limits.memory_bytes {
                places.extend(create_v1(
                    &mounts,
                    &own,
                    "memory",
                    name,
                    Holds::Memory,
                    &[("memory.limit_in_bytes", &bytes.to_string())],
                ));
            }
            if let Some(count) = limits.processes {
                places.extend(create_v1(
                    &mounts,
                    &own,
                    "pids",
                    name,
                    Holds::Processes,
                    &[("pids.max", &count.to_string())],
                ));
            }
        }
        (!places.is_empty()).then_some(Self { places })
    }

    /// Whether it bounds memory.
    pub fn holds_memory(&self) -> bool {
        self.places
            .iter()
            .any(|place| place.holds != Holds::Processes)
    }

    /// Whether it bounds the number of processes.
    pub fn holds_processes(&self) -> bool {
        self.places.iter().any(|place| place.holds != Holds::Memory)
    }

    pub(crate) fn clone_fd(&self) -> Option<RawFd> {
        self.places
            .iter()
            .find_map(|place| place.birth.as_ref())
            .map(|fd| fd.as_raw_fd())
    }

    /// Puts a process into it, where it was not born there.
    pub(crate) fn enter(&self, pid: i32) -> io::Result<()> {
        for place in self.places.iter().filter(|place| place.birth.is_none()) {
            fs::write(place.directory.join("cgroup.procs"), pid.to_string())?;
        }
        Ok(())
    }

    /// Where a process that is about to be somebody else writes itself into it.
    pub(crate) fn doors(&self) -> io::Result<Vec<fs::File>> {
        let door = |place: &Place| {
            let path = place.directory.join("cgroup.procs");
            fs::OpenOptions::new().write(true).open(path)
        };
        self.places.iter().map(door).collect()
    }

    /// Kills everything in it, and waits until nothing is left.
    pub fn empty(&self) {
        for place in &self.places {
            empty(&place.directory);
        }
    }

    /// What the kernel has counted so far.
    pub fn events(&self) -> CgroupEvents {
        let mut events = CgroupEvents::default();
        for place in &self.places {
            events.add(&place.directory);
        }
        events
    }
}

/// The cgroup of a process that somebody else has put there: looked at, and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    pid: Option<i32>,
    directories: Vec<PathBuf>,
}

impl Foreign {
    /// Where the kernel keeps it.
    pub fn of(pid: i32) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let mut directories = Vec::new();
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(place), Some(kind @ ("cgroup" | "cgroup2"))) = (fields.next(), fields.next())
            else {
                continue;
            };
            let options = fields.next().unwrap_or_default();
            let of = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let controllers = fields.next()?;
                let path = fields.next()?;
                let fits = match kind {
                    "cgroup2" => controllers.is_empty(),
                    _ => controllers.split(',').any(|name| {
                        ["memory", "pids"].contains(&name) && options.split(',').any(|o| o == name)
                    }),
                };
                fits.then_some(path)
            });
            directories.extend(of.map(|path| Path::new(place).join(path.trim_start_matches('/'))));
        }
        Self {
            pid: (pid > 0).then_some(pid),
            directories,
        }
    }

    /// Whether it was there and is not any more.
    pub fn is_gone(&self) -> bool {
        // A tree that nobody uses has one place for all.
        self.directories.iter().any(|at| !at.exists())
    }

    /// Whose it is.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// The bound on memory that the kernel has.
    pub fn memory_bytes(&self) -> Option<u64> {
        // BOUND: version 1 writes a number near the largest where there is none.
        const NONE: u64 = 1 << 60;
        let bound = self.number(&["memory.limit_in_bytes", "memory.max"])?;
        (bound < NONE).then_some(bound)
    }

    /// The bound on processes and threads that the kernel has.
    pub fn processes(&self) -> Option<u64> {
        self.number(&["pids.max"])
    }

    fn number(&self, files: &[&str]) -> Option<u64> {
        let read = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
        let all = self.directories.iter();
        let mut all = all.flat_map(|at| files.iter().map(|file| at.join(file)));
        all.find_map(read)
    }

    /// What the kernel has counted so far.
    pub fn events(&self) -> CgroupEvents {
        let mut events = CgroupEvents::default();
        for directory in &self.directories {
            events.add(directory);
        }
        events
    }
}

impl CgroupEvents {
    fn add(&mut self, directory: &Path) {
        for file in ["memory.oom_control", "memory.events"] {
            self.memory_kills += count(&directory.join(file), "oom_kill");
        }
        self.process_refusals += count(&directory.join("pids.events"), "max");
    }
}

/// Removes a cgroup whose maker was killed, wherever this caller could have made it.
pub fn sweep(name: &str) {
    // Absent in most places; busy for a moment where its driver was just killed.
    wherever(name, remove);
}

/// The same with all that is still in it, which is killed.
pub fn sweep_with_all(name: &str) {
    wherever(name, |directory| {
        empty(directory);
        remove(directory);
    });
}

fn wherever(name: &str, act: impl Fn(&Path)) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(place), Some("cgroup" | "cgroup2")) = (fields.next(), fields.next()) else {
            continue;
        };
        for path in own.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
            let mut parent = Path::new(place).join(path.trim_start_matches('/'));
            while parent.starts_with(place) {
                act(&parent.join(name));
                if !parent.pop() {
                    break;
                }
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for place in &self.places {
            remove(&place.directory);
        }
    }
}

/// Kills what is in a cgroup, until nothing is: what forks meanwhile is met by the next look.
fn empty(directory: &Path) {
    // BOUND: a process that is killed is gone within milliseconds; on a machine that is drowning,
    // within seconds. What is left then is found by its name later.
    for _ in 0..5000 {
        let inside = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        let mut left = 0;
        for pid in inside.lines().filter_map(|line| line.parse().ok()) {
            left += 1;
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                // Gone already is as good.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if left == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A cgroup is busy for a moment after its last process is gone.
fn remove(directory: &Path) {
    // BOUND: 100 tries of a millisecond; what is left then is found by its name later.
    for _ in 0..100 {
        match fs::remove_dir(directory) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            _ => return,
        }
    }
}

fn count(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let value = text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    });
    value.unwrap_or(0)
}

fn create_v1(
    mounts: &str,
    own: &str,
    controller: &str,
    name: &str,
    holds: Holds,
    settings: &[(&str, &str)],
) -> Option<Place> {
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, place, kind, options) = (
            fields.next()?,
            fields.next()?,
            fields.next()?,
            fields.next()?,
        );
        (kind == "cgroup" && options.split(',').any(|option| option == controller)).then_some(place)
    })?;
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|c| c == controller)
            .then_some(path)
    })?;
    let directory = Path::new(mount)
        .join(path.trim_start_matches('/'))
        .join(name);
    fs::create_dir(&directory).ok()?;
    let place = Place {
        directory,
        holds,
        birth: None,
    };
    for (file, value) in settings {
        if fs::write(place.directory.join(file), value).is_err() {
            remove(&place.directory);
            return None;
        }
    }
    Some(place)
}

fn create_v2(mounts: &str, own: &str, name: &str, limits: &CgroupLimits) -> Option<Place> {
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut parent = mount.join(path.trim_start_matches('/'));
    loop {
        if let Some(place) = try_v2(&parent, name, limits) {
            return Some(place);
        }
        if parent == mount || !parent.pop() {
            return None;
        }
    }
}

fn try_v2(parent: &Path, name: &str, limits: &CgroupLimits) -> Option<Place> {
    // Where processes of ours already are, the kernel refuses to hand controllers down.
    let control = parent.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).ok()?;
    let has = |controller: &str| enabled.split_whitespace().any(|c| c == controller);
    if !(has("memory") && has("pids")) {
        fs::write(&control, "+memory +pids").ok()?;
    }
    let directory = parent.join(name);
    fs::create_dir(&directory).ok()?;
    let set = || -> io::Result<OwnedFd> {
        if let Some(bytes) = limits.memory_bytes {
            fs::write(directory.join("memory.max"), bytes.to_string())?;
            // Absent where swap is not accounted.
            let _ = fs::write(directory.join("memory.swap.max"), "0");
        }
        if let Some(count) = limits.processes {
            fs::write(directory.join("pids.max"), count.to_string())?;
        }
        // Being born there needs the right to move processes there from here.
        fs::OpenOptions::new()
            .write(true)
            .open(parent.join("cgroup.procs"))?;
        Ok(fs::File::open(&directory)?.into())
    };
    match set() {
        Ok(birth) => Some(Place {
            directory,
            holds: Holds::Both,
            birth: Some(birth),
        }),
        Err(_) => {
            remove(&directory);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that stands for a cgroup file system: the parsing of mounts, paths and events is
    /// the same, and the real one is used by the run tests where the machine has it.
    #[test]
    fn version_1_is_found_by_controller_and_own_path() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("memory");
        fs::create_dir_all(memory.join("user/session")).unwrap();
        let mounts = format!(
            "cgroup {} cgroup rw,relatime,memory 0 0\n",
            memory.display()
        );
        let place = create_v1(
            &mounts,
            "5:memory:/user/session\n",
            "memory",
            "r1",
            Holds::Memory,
            &[("limit", "7")],
        )
        .unwrap();
        assert_eq!(place.directory, memory.join("user/session/r1"));
        assert_eq!(
            fs::read_to_string(place.directory.join("limit")).unwrap(),
            "7"
        );
        assert!(create_v1(&mounts, "5:memory:/\n", "pids", "r1", Holds::Processes, &[]).is_none());
    }

    #[test]
    fn version_2_is_made_below_the_nearest_parent_that_hands_its_controllers_down() {
        let root = tempfile::tempdir().unwrap();
        let user = root.path().join("user");
        fs::create_dir_all(user.join("session")).unwrap();
        fs::write(user.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        fs::write(user.join("cgroup.procs"), "").unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", root.path().display());
        let limits = CgroupLimits {
            memory_bytes: Some(7),
            processes: Some(9),
        };
        let place = create_v2(&mounts, "0::/user/session\n", "r1", &limits).unwrap();
        assert_eq!(place.directory, user.join("r1"));
        let written = |file: &str| fs::read_to_string(place.directory.join(file)).unwrap();
        assert_eq!(
            (written("memory.max"), written("pids.max")),
            ("7".into(), "9".into())
        );
        assert!(create_v2(&mounts, "0::/\n", "r2", &limits).is_none());
    }

    #[test]
    fn events_are_counted() {
        let root = tempfile::tempdir().unwrap();
        fs::write(
            root.path().join("memory.events"),
            "low 0\noom 3\noom_kill 2\n",
        )
        .unwrap();
        fs::write(root.path().join("pids.events"), "max 9\n").unwrap();
        let place = Place {
            directory: root.path().to_owned(),
            holds: Holds::Both,
            birth: None,
        };
        let cgroup = Cgroup {
            places: vec![place],
        };
        assert_eq!(
            cgroup.events(),
            CgroupEvents {
                memory_kills: 2,
                process_refusals: 9
            }
        );
    }
}

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

    /// What the kernel has counted so far.
    pub fn events(&self) -> CgroupEvents {
        let mut events = CgroupEvents::default();
        for place in &self.places {
            for file in ["memory.oom_control", "memory.events"] {
                events.memory_kills += count(&place.directory.join(file), "oom_kill");
            }
            events.process_refusals += count(&place.directory.join("pids.events"), "max");
        }
        events
    }
}

/// Removes a cgroup whose maker was killed, wherever this caller could have made it.
pub fn sweep(name: &str) {
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
                // Absent in most places; busy for a moment where its driver was just killed.
                remove(&parent.join(name));
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

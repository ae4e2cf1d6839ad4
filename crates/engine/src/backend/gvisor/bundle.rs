//! What a runtime is told of a sandbox: the directory that is `/` inside, and `config.json`.

use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use ringfence_jail::attach;
use ringfence_jail::facts::{HostFacts, Item};
use ringfence_jail::identity::Identity;
use ringfence_jail::plan::{Access, Holds, OWN, Spec};
use serde_json::{Value, json};

use super::NAME;
use crate::backend::docker::place::failed;
use crate::backend::{BackendError, Start};
use crate::guest;

/// What the guest keeps to itself: looking into processes, signalling them, becoming the agent.
pub const CAPABILITIES: [&str; 5] = [
    "CAP_SYS_PTRACE",
    "CAP_KILL",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_SETPCAP",
];
/// BOUND: descriptors of the guest: those of 1,000 commands at once, many times over.
const OPEN_FILES: u64 = 20_000;

/// Fills a place: all that is shown is mounted, all mount points are there.
pub fn write(
    places: &Path,
    place: &Path,
    seen: &Path,
    start: &Start<'_>,
) -> Result<(), BackendError> {
    let spec = start.spec;
    let Identity::Range { base, length, .. } = spec.identity else {
        return Err(BackendError::NeedsRoot { backend: NAME });
    };
    let mut bundle = Bundle {
        root: place.join("root"),
        mounts: Vec::new(),
    };
    make_directory(&place.join("state"))?;
    make_directory(&bundle.root)?;
    bundle.system()?;
    bundle.kernel(spec)?;
    let program = bundle.root.join(OWN).join("guest");
    bundle.directory(Path::new(OWN))?;
    guest::install(places, &program, guest::Readable::By(base))
        .map_err(failed("bring the guest to", &program))?;
    for one in attach::attach(spec, place)? {
        let source = one.host.strip_prefix(place).unwrap_or(&one.host);
        bundle.mount_point(&one.host, &one.inside)?;
        bundle.bind(&seen.join(source), &one.inside, one.access, "bind")?;
    }
    bundle.scratch(spec)?;
    let mapping = json!([{ "containerID": 0, "hostID": base, "size": length }]);
    let namespaces = ["pid", "network", "ipc", "uts", "mount", "user"];
    let config = json!({
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": [format!("/{OWN}/guest")],
            // Everybody inside can read it.
            "env": [],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": CAPABILITIES,
                "effective": CAPABILITIES,
                "permitted": CAPABILITIES,
                "inheritable": [],
                "ambient": [],
            },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": OPEN_FILES, "soft": OPEN_FILES }],
        },
        "root": { "path": text(&seen.join("root"))?, "readonly": true },
        "mounts": bundle.mounts,
        "linux": {
            "namespaces": namespaces.map(|kind| json!({ "type": kind })),
            "uidMappings": mapping,
            "gidMappings": mapping,
        },
    });
    let path = place.join("config.json");
    fs::write(&path, config.to_string()).map_err(failed("write", &path))
}

struct Bundle {
    root: PathBuf,
    mounts: Vec<Value>,
}

impl Bundle {
    /// The host's own system, read-only, and an `/etc` of ours.
    fn system(&mut self) -> Result<(), BackendError> {
        let facts = HostFacts::gather().map_err(failed("look at", Path::new("/")))?;
        for (name, item) in &facts.system {
            self.item(Path::new(name), item)?;
        }
        for (name, item) in &facts.etc {
            self.item(&Path::new("etc").join(name), item)?;
        }
        let accounts = &facts.accounts;
        for (name, content) in [
            ("passwd", &accounts.passwd[..]),
            ("group", &accounts.group),
            ("hosts", b"127.0.0.1 localhost ringfence\n::1 localhost\n"),
            ("hostname", b"ringfence\n"),
            ("resolv.conf", b""),
            (
                "nsswitch.conf",
                b"passwd: files\ngroup: files\nhosts: files dns\n",
            ),
        ] {
            self.file(&Path::new("etc").join(name), content)?;
        }
        self.link(Path::new("etc/mtab"), b"/proc/self/mounts")?;
        for name in ["var", "run", "sys", "root", "home"] {
            self.directory(Path::new(name))?;
        }
        self.link(Path::new("var/tmp"), b"/tmp")
    }

    fn item(&mut self, path: &Path, item: &Item) -> Result<(), BackendError> {
        match item {
            Item::Directory => {
                let host = Path::new("/").join(path);
                self.directory(path)?;
                self.bind(&host, &host, Access::ReadOnly, "rbind")
            }
            Item::Symlink(target) => self.link(path, target),
            Item::File(content) => self.file(path, content),
        }
    }

    /// What its kernel makes itself.
    fn kernel(&mut self, spec: &Spec) -> Result<(), BackendError> {
        let bytes = spec.tmpfs_bytes;
        self.special("/proc", "proc", &["nosuid", "noexec", "nodev"])?;
        self.special("/dev", "tmpfs", &["nosuid", "noexec", "mode=755"])?;
        let terminals = [
            "nosuid",
            "noexec",
            "newinstance",
            "ptmxmode=0666",
            "mode=0620",
        ];
        self.special("/dev/pts", "devpts", &terminals)?;
        let shared = format!("mode=1777,size={bytes}");
        let shared: Vec<&str> = ["nosuid", "nodev", "noexec"]
            .into_iter()
            .chain(shared.split(','))
            .collect();
        self.special("/dev/shm", "tmpfs", &shared)
    }

    /// Directories in memory.
    fn scratch(&mut self, spec: &Spec) -> Result<(), BackendError> {
        if spec.workspace.holds == Holds::Folder {
            self.memory(Path::new("/tmp"), "1777", spec.tmpfs_bytes, spec)?;
            self.memory(Path::new("/home/agent"), "700", spec.tmpfs_bytes, spec)?;
        }
        // HOSTILE: a folder chooses sizes. All areas together have what one of the usual ones has.
        let share = spec.tmpfs_bytes / spec.tmpfs.len().max(1) as u64;
        for area in &spec.tmpfs {
            self.memory(&area.inside, "755", area.bytes.min(share), spec)?;
        }
        Ok(())
    }

    fn memory(
        &mut self,
        inside: &Path,
        mode: &str,
        bytes: u64,
        spec: &Spec,
    ) -> Result<(), BackendError> {
        let id = spec.runs.id();
        let options = [
            "nosuid".to_owned(),
            "nodev".to_owned(),
            format!("mode={mode}"),
            format!("uid={id}"),
            format!("gid={id}"),
            format!("size={bytes}"),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        self.special(&text(inside)?, "tmpfs", &options)
    }

    fn special(&mut self, inside: &str, kind: &str, options: &[&str]) -> Result<(), BackendError> {
        self.directory(Path::new(inside))?;
        self.mounts.push(json!({
            "destination": inside,
            "type": kind,
            "source": kind,
            "options": options,
        }));
        Ok(())
    }

    fn bind(
        &mut self,
        source: &Path,
        inside: &Path,
        access: Access,
        depth: &str,
    ) -> Result<(), BackendError> {
        let access = match access {
            Access::ReadOnly => "ro",
            Access::Write => "rw",
        };
        self.mounts.push(json!({
            "destination": text(inside)?,
            "type": "bind",
            "source": text(source)?,
            "options": [access, depth, "nosuid", "nodev"],
        }));
        Ok(())
    }

    /// Something to mount on, of the same kind as what will be mounted.
    fn mount_point(&self, host: &Path, inside: &Path) -> Result<(), BackendError> {
        let found = fs::metadata(host).map_err(failed("look at", host))?;
        if found.is_dir() {
            self.directory(inside)
        } else {
            self.file(inside, b"")
        }
    }

    /// INVARIANT: nothing in here was there before, and no name of an agent's choice is: nothing can
    /// be a link that leads elsewhere. A system directory may be one, and nothing is made below it.
    fn directory(&self, inside: &Path) -> Result<(), BackendError> {
        let mut path = self.root.clone();
        for part in inside.components() {
            if let Component::Normal(name) = part {
                path.push(name);
                if path.symlink_metadata().is_err() {
                    make_directory(&path)?;
                }
            }
        }
        Ok(())
    }

    fn file(&self, inside: &Path, content: &[u8]) -> Result<(), BackendError> {
        let path = self.below(inside)?;
        fs::write(&path, content)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o644)))
            .map_err(failed("write", &path))
    }

    fn link(&self, inside: &Path, target: &[u8]) -> Result<(), BackendError> {
        let path = self.below(inside)?;
        let target = std::ffi::OsStr::from_bytes(target);
        std::os::unix::fs::symlink(target, &path).map_err(failed("make", &path))
    }

    /// Where something is made, in a directory that is there.
    fn below(&self, inside: &Path) -> Result<PathBuf, BackendError> {
        if let Some(parent) = inside.parent() {
            self.directory(parent)?;
        }
        Ok(self.root.join(inside.strip_prefix("/").unwrap_or(inside)))
    }
}

/// Readable for every id, whatever the umask. Nobody but root has a way here.
pub fn make_directory(path: &Path) -> Result<(), BackendError> {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(failed("make", path))
}

fn text(path: &Path) -> Result<String, BackendError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or(BackendError::DoesNotHold {
            backend: NAME,
            what: "a path that is not UTF-8",
        })
}

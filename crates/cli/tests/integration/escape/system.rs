//! An image with the programs of this machine: the second kind of root that attacks run on.
//!
//! It is not unpacked: each fixture imports an image of one file, whose layer is then replaced by a
//! tree of hard links to what the machine has.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::support::{Fixture, LOOK_SECONDS, Mode, Sandboxed, is_root, run_quietly};

/// What of the machine the cases use.
const PARTS: &[&str] = &[
    "usr/bin",
    "usr/sbin",
    "usr/lib64",
    "usr/libexec",
    "usr/include",
    "usr/lib/gcc",
    "usr/lib/git-core",
    "usr/lib/python3",
    "usr/share/git-core",
    "usr/share/perl5",
    "etc/alternatives",
    "etc/ld.so.cache",
];

/// The tree and a file to import.
pub struct System {
    directory: TempDir,
}

impl System {
    /// `None`, and a line that says why, where this machine cannot have one.
    pub fn make() -> Result<Option<Self>> {
        static SAID: OnceLock<()> = OnceLock::new();
        let skip = |why: &str| {
            SAID.get_or_init(|| println!("SKIPPED attacks on an image: {why}"));
            Ok(None)
        };
        if !is_root() {
            return skip("hard links to the machine's files need root");
        }
        if !Path::new("/bin").is_symlink() {
            return skip("this machine has no merged /usr");
        }
        match Self::directory()? {
            Some(directory) => Self::link(directory).map(Some),
            None => skip(
                "neither the temporary directory nor /var/tmp nor /tmp can have hard links to files of /usr",
            ),
        }
    }

    /// A directory to which the machine's programs can be hard-linked.
    fn directory() -> Result<Option<TempDir>> {
        // The first is removed even if this test is killed.
        let of_the_run = std::env::var_os("RINGFENCE_TEST_DISK").map(PathBuf::from);
        let others = [std::env::temp_dir(), "/var/tmp".into(), "/tmp".into()];
        for place in of_the_run.into_iter().chain(others) {
            let directory = tempfile::Builder::new()
                .prefix("ringfence-system-")
                .permissions(Permissions::from_mode(0o755))
                .tempdir_in(&place)
                .with_context(|| format!("cannot make a directory in {}", place.display()))?;
            // Try it: hard links cannot cross mounts, even of one file system.
            match fs::hard_link("/usr/bin/env", directory.path().join("env")) {
                Ok(()) => return Ok(Some(directory)),
                Err(error) if error.kind() == ErrorKind::CrossesDevices => {}
                Err(error) => {
                    let place = place.display();
                    return Err(error).context(format!("cannot link a program to {place}"));
                }
            }
        }
        Ok(None)
    }

    fn link(directory: TempDir) -> Result<Self> {
        let system = Self { directory };
        let tree = system.tree();
        fs::create_dir(&tree)?;
        let mut parts: Vec<PathBuf> = PARTS.iter().map(PathBuf::from).collect();
        for entry in fs::read_dir("/usr/lib")? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap_or_default();
            let is_wanted = name.ends_with("-linux-gnu") || name.starts_with("python3.");
            if is_wanted || !entry.file_type()?.is_dir() {
                parts.push(Path::new("usr/lib").join(name));
            }
        }
        for part in parts {
            let from = Path::new("/").join(&part);
            if fs::symlink_metadata(&from).is_err() {
                continue;
            }
            let to = tree.join(&part);
            fs::create_dir_all(to.parent().context("every part has a parent")?)?;
            if !to.exists() {
                run_quietly(Command::new("cp").arg("-al").arg(&from).arg(&to))?;
            }
        }
        for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                symlink(target, tree.join(name))?;
            }
        }
        ensure!(tree.join("bin/sh").exists(), "the image has no shell");
        let one = system.directory.path().join("one");
        fs::create_dir(&one)?;
        fs::write(one.join("marker"), "one\n")?;
        run_quietly(
            Command::new("tar")
                .arg("-C")
                .arg(&one)
                .arg("-cf")
                .arg(system.file())
                .arg("."),
        )?;
        Ok(system)
    }

    fn tree(&self) -> PathBuf {
        self.directory.path().join("system")
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("one.tar")
    }

    /// A fixture whose runs are on the image, without an option: its own policy says so.
    pub fn fixture(&self, env: &Sandboxed, name: &str, mode: Mode) -> Result<Fixture> {
        let fixture = env.fixture(&format!("{name}-on-image"), mode)?;
        let file = self.file();
        let file = file.to_string_lossy();
        let words = ["image", "import", &file, "--name", "system:1"];
        let imported = env.ringfence(&fixture, LOOK_SECONDS, &words)?;
        ensure!(imported.status.success(), "{}", imported.tail());
        let layers = fixture.state.join("images/layers");
        let mut swapped = 0;
        for entry in fs::read_dir(&layers)? {
            let path = entry?.path();
            if path.is_dir() {
                run_quietly(Command::new("rm").arg("-rf").arg(&path))?;
                symlink(self.tree(), &path)?;
                swapped += 1;
            }
        }
        ensure!(swapped == 1, "an image of one file has {swapped} layers");
        let policy = "[environment]\nimage = \"system:1\"\n";
        fs::write(fixture.state.join("policy.toml"), policy)?;
        Ok(fixture)
    }
}

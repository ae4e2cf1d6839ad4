//! The programs of the inside, embedded: the guest, as a sealed copy in memory, and the direct
//! tools, as a file in the home that sandboxes see read-only.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ringfence_jail::sealed::Sealed;

use crate::durable::{self, Existing, TEMPORARY_PREFIX};
use crate::home::Home;
use crate::ids::RunId;

static PROGRAM: &[u8] = include_bytes!(env!("RINGFENCE_GUEST"));
static TOOLS: &[u8] = include_bytes!(env!("RINGFENCE_TOOLS"));
/// SHA-256 of the tools, taken when they were built.
const TOOLS_DIGEST: &str = env!("RINGFENCE_TOOLS_DIGEST");
/// HOSTILE: who may execute a program and not read it has no way into its process either, from the
/// first instant on: the kernel makes it undumpable.
const TOOLS_MODE: u32 = 0o111;
/// The same of the guest, whose owner is the guest itself where a kernel asks who may read it.
const GUEST_MODE: u32 = 0o511;
/// The same where everybody may: it says nothing that the page of the project does not.
const READABLE_MODE: u32 = 0o555;
/// What the tools are called, inside as in the home.
pub const TOOLS_NAME: &str = "ringfence-tools";

/// The sealed copy: made once in a process, used for every sandbox it starts.
pub fn sealed() -> io::Result<&'static Sealed> {
    static SEALED: OnceLock<Sealed> = OnceLock::new();
    if let Some(sealed) = SEALED.get() {
        return Ok(sealed);
    }
    let sealed = Sealed::new(PROGRAM)?;
    Ok(SEALED.get_or_init(|| sealed))
}

/// Who can read the guest's program. Its own kernel need not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readable {
    ByNobody,
    /// For a kernel that is a program of the host, which must be able to read what it executes. Nobody but
    /// the guest is this inside.
    By(u32),
    /// The same where the guest's user owns nothing of ours.
    ByAll,
}

/// The guest as a file, for engines of others, which start it by its path: linked to where a sandbox
/// sees it.
pub(crate) fn install(places: &Path, at: &Path, readable: Readable) -> io::Result<()> {
    link(&kept(places, readable)?, at)
}

/// Where it is kept: made once in `places` for each build.
pub(crate) fn kept(places: &Path, readable: Readable) -> io::Result<PathBuf> {
    let (name, mode) = match readable {
        Readable::ByNobody => (format!(".{}", digest()), TOOLS_MODE),
        Readable::By(owner) => (format!(".{}-{owner}", digest()), GUEST_MODE),
        Readable::ByAll => (format!(".{}-all", digest()), READABLE_MODE),
    };
    let program = places.join(name);
    let is_whole = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|found| {
            found.len() == PROGRAM.len() as u64
                && found.mode() & 0o7777 == mode
                && !matches!(readable, Readable::By(owner) if owner != found.uid())
        })
    };
    if !is_whole(&program) {
        write_program(&program, PROGRAM, TOOLS_MODE)?;
        if let Readable::By(owner) = readable {
            std::os::unix::fs::chown(&program, Some(owner), Some(owner))?;
        }
        fs::set_permissions(&program, Permissions::from_mode(mode))?;
    }
    Ok(program)
}

/// Another process that brings the same program at this moment puts its own in the place of what is being
/// linked, which is no file any more then.
fn link(program: &Path, at: &Path) -> io::Result<()> {
    // BOUND: each of them does it once, in a new home.
    const TRIES: usize = 64;
    let mut linked = fs::hard_link(program, at);
    for _ in 0..TRIES {
        match &linked {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => break,
        }
        linked = fs::hard_link(program, at);
    }
    linked
}

/// Names the build of the guest.
pub(crate) fn digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| {
        use sha2::Digest as _;
        let mut hex = ringfence_model::hex(&sha2::Sha256::digest(PROGRAM));
        hex.truncate(16);
        hex
    })
}

/// Puts a program at a path, whole or not at all.
fn write_program(program: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let token = RunId::random().map_err(io::Error::other)?;
    let temporary = program.with_file_name(format!("{TEMPORARY_PREFIX}{token}"));
    let installed = durable::write_file(&temporary, content, Existing::Refuse)
        .map_err(io::Error::other)
        .and_then(|written| {
            written.file.set_permissions(Permissions::from_mode(mode))?;
            // A power cut must not leave a whole name with half a program.
            written.file.sync_data()?;
            drop(written);
            fs::rename(&temporary, program)
        });
    if installed.is_err() {
        // Left behind it would mean nothing.
        let _ = fs::remove_file(&temporary);
    }
    installed
}

/// The program of the guest.
pub(crate) fn program_bytes() -> &'static [u8] {
    PROGRAM
}

/// The program of the direct tools.
pub fn tools_bytes() -> &'static [u8] {
    TOOLS
}

/// Puts the tools into the home, once for each build of them, and gives their directory.
///
/// INVARIANT: the name is there only with the whole program behind it, executable. Two processes
/// that do this at once write the same bytes, and the later rename changes nothing.
pub fn install_tools(home: &Home) -> io::Result<PathBuf> {
    tools_in(home, &TOOLS_DIGEST[..16], TOOLS_MODE)
}

/// The same with tools that can be read.
pub(crate) fn install_readable_tools(home: &Home) -> io::Result<PathBuf> {
    let name = format!("{}-all", &TOOLS_DIGEST[..16]);
    tools_in(home, &name, READABLE_MODE)
}

fn tools_in(home: &Home, name: &str, mode: u32) -> io::Result<PathBuf> {
    let all = home.root().join("tools");
    let directory = all.join(name);
    let program = directory.join(TOOLS_NAME);
    if is_whole(&program, mode) {
        return Ok(directory);
    }
    make_directory(&all)?;
    make_directory(&directory)?;
    write_program(&program, TOOLS, mode)?;
    Ok(directory)
}

/// The directory names the content, so its size is enough to know it by.
fn is_whole(program: &Path, mode: u32) -> bool {
    fs::symlink_metadata(program).is_ok_and(|metadata| {
        metadata.is_file()
            && metadata.len() == TOOLS.len() as u64
            && metadata.mode() & 0o7777 == mode
    })
}

/// Readable for the agent of every sandbox, whatever the umask.
fn make_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::set_permissions(path, Permissions::from_mode(0o755)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn a_guest_that_many_bring_at_once_is_there_for_each() {
        for _ in 0..4 {
            let place = tempfile::tempdir().unwrap();
            thread::scope(|scope| {
                for number in 0..8 {
                    let at = place.path().join(format!("guest{number}"));
                    let places = place.path();
                    scope.spawn(move || install(places, &at, Readable::ByNobody).unwrap());
                }
            });
            for number in 0..8 {
                let at = place.path().join(format!("guest{number}"));
                assert_eq!(fs::metadata(at).unwrap().len(), PROGRAM.len() as u64);
            }
        }
    }

    #[test]
    fn the_tools_are_installed_once_and_whole() {
        let place = tempfile::tempdir().unwrap();
        let home = Home::open(Some(place.path().join("home"))).unwrap();
        assert_eq!(
            ringfence_model::hex(&Sha256::digest(tools_bytes())),
            TOOLS_DIGEST
        );
        let directories: Vec<PathBuf> = thread::scope(|scope| {
            let started: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| install_tools(&home).unwrap()))
                .collect();
            let joined = started.into_iter().map(|thread| thread.join().unwrap());
            joined.collect()
        });
        let directory = &directories[0];
        assert!(directories.iter().all(|other| other == directory));
        let names: Vec<_> = fs::read_dir(directory).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing is left behind");
        let program = directory.join(TOOLS_NAME);
        let inode = fs::metadata(&program).unwrap().ino();
        install_tools(&home).unwrap();
        assert_eq!(fs::metadata(&program).unwrap().ino(), inode);
        // Half a program is replaced.
        let reveal = || fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        reveal();
        fs::write(&program, b"half").unwrap();
        install_tools(&home).unwrap();
        let mode = fs::metadata(&program).unwrap().mode();
        assert_eq!(mode & 0o7777, TOOLS_MODE);
        reveal();
        assert_eq!(fs::read(&program).unwrap(), tools_bytes());
        // Another test may be between its fork and its exec, with our file still open for writing.
        let output = (0..1_000)
            .map(|_| Command::new(&program).output())
            .find(|output| {
                !matches!(output, Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy)
            })
            .unwrap()
            .unwrap();
        assert!(output.stdout.starts_with(br#"{"error":{"kind":"invalid""#));
    }
}

//! What crosses back: the same script gives the same bytes of patch everywhere, and that patch gives the
//! tree that the script makes without any sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::scene::{Scene, Seen};
use crate::support::{expect, fingerprint, run_quietly};

/// Every kind of change that a patch can hold.
pub const SCRIPT: &str = r#"
set -e; umask 022
echo four >> a.txt; sed s/two/TWO/ a.txt > t && cat t > a.txt && rm t
rm src/deep/x.c; mv src/main.c renamed.c; mkdir -p new/deep/er
printf '' > zero; seq 1 60000 > new/large; head -c 300000 /dev/zero > new/zeros
printf 'a\000b\377' > new/binary; printf 'no end of line' > new/unended
printf '#!/bin/sh\necho x\n' > tool; chmod 755 tool; chmod 755 README.md
printf 'x\n' > 'a name with spaces'; printf 'x\n' > "$(printf 'odd\nname')"
printf 'x\n' > "$(printf 'bytes\377')"; printf 'x\n' > -dash; printf 'x\n' > 'quo"te'; printf 'x\n' > 'ünïcödé'
ln -s a.txt link; ln -s nowhere dangling; ln -s ../a.txt new/up; echo twin > twin; ln twin twin2
echo x > gone; rm gone; mkdir empty; echo y > moved; mv moved new/moved
mkdir swap; echo s > swap/s; mv swap swapped; echo last > swap
printf 'crlf\r\n' > crlf; echo two > .hidden
"#;

/// A file, a link or a program, with what it holds.
type Tree = BTreeMap<PathBuf, (&'static str, Vec<u8>)>;

fn tree(top: &Path) -> Result<Tree> {
    let mut found = Tree::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.ends_with(".git") {
                continue;
            }
            let metadata = fs::symlink_metadata(&path)?;
            let name = path.strip_prefix(top)?.to_owned();
            if metadata.is_dir() {
                open.push(path);
            } else if metadata.is_symlink() {
                let target = fs::read_link(&path)?.into_os_string().into_encoded_bytes();
                found.insert(name, ("link", target));
            } else {
                let is_program = metadata.permissions().mode() & 0o100 != 0;
                let kind = if is_program { "program" } else { "file" };
                found.insert(name, (kind, fs::read(&path)?));
            }
        }
    }
    Ok(found)
}

fn copy_of(scene: &Scene<'_>, name: &str) -> Result<PathBuf> {
    let copy = scene.fixture.folder.with_file_name(name);
    let mut command = Command::new("cp");
    run_quietly(command.arg("-a").arg(&scene.fixture.folder).arg(&copy))?;
    Ok(copy)
}

/// The patch applies, gives what the script makes on the host, and has the same bytes whichever backend
/// it was.
pub fn fidelity(scene: &Scene<'_>) -> Result<Seen> {
    let result = scene.run(&[], SCRIPT)?;
    expect(&result, "status", "done")?;
    let patch = result["patch"].as_str().context("no patch is named")?;
    let (expected, applied) = (copy_of(scene, "expected")?, copy_of(scene, "applied")?);
    scene
        .env
        .as_owner(&scene.fixture, &expected, &["sh", "-c", SCRIPT])?;
    for words in [&["apply", "--check", patch][..], &["apply", patch]] {
        scene.env.git(&scene.fixture, &applied, words)?;
    }
    let (expected, applied) = (tree(&expected)?, tree(&applied)?);
    let differing: Vec<&PathBuf> = expected
        .keys()
        .chain(applied.keys())
        .filter(|name| expected.get(*name) != applied.get(*name))
        .collect();
    ensure!(differing.is_empty(), "another tree: {differing:?}");
    scene.same_everywhere("patch", &result["patch_sha256"])?;
    scene.same_everywhere("changes", &result["changes"])?;
    Ok(Seen::Held)
}

/// The real folder and its `.git` do not change.
pub fn folder(scene: &Scene<'_>) -> Result<Seen> {
    let before = fingerprint(&scene.fixture.folder)?;
    let shell =
        "echo x > new.txt; rm a.txt; mkdir -p .git/hooks; echo y > .git/hooks/post-checkout";
    let result = scene.run(&[], shell)?;
    expect(&result, "exit_code", 0)?;
    let after = fingerprint(&scene.fixture.folder)?;
    ensure!(before == after, "it was changed");
    Ok(Seen::Held)
}

/// Modes, owners and times inside are a workspace's, and changes of all of them work there.
pub fn inside(scene: &Scene<'_>) -> Result<Seen> {
    let shell = r#"
test "$(stat -c %u a.txt)" = "$(id -u)" || echo OWNER
test "$(stat -c %u /workspace)" = "$(id -u)" || echo TOP
chmod 640 a.txt && test "$(stat -c %a a.txt)" = 640 || echo MODE
touch -d @1000000000 a.txt && test "$(stat -c %Y a.txt)" = 1000000000 || echo TIME
ln a.txt hard && test "$(stat -c %h a.txt)" = 2 || echo LINK
mv src lib && test -e lib/deep/x.c && mv lib src || echo RENAME
rm -r src && test ! -e src && mkdir src && test -z "$(ls -A src)" || echo DELETE
mkfifo pipe && test -p pipe || echo PIPE
head -c 3000000 /dev/zero > big && truncate -s 5000000 big && test "$(stat -c %s big)" = 5000000 || echo LARGE
printf '#!/bin/sh\nexit 0\n' > s && chmod +x s && ./s || echo PROGRAM
cp s /tmp/s && /tmp/s && cp s ~/s && ~/s || echo PROGRAM ELSEWHERE
cp s /dev/shm/s && /dev/shm/s || echo PROGRAM IN SHARED MEMORY
ls -d .git a.txt > /dev/null && git status > /dev/null || echo GIT
true"#;
    let result = scene.run(&[], shell)?;
    let told = crate::support::said(&result);
    ensure!(
        told.is_empty(),
        "does not work: {}",
        told.trim().replace('\n', ", ")
    );
    Ok(Seen::Held)
}

impl Scene<'_> {
    /// Fails where another backend gave something else.
    pub fn same_everywhere(&self, what: &str, value: &Value) -> Result<()> {
        let mut all = self.shared.lock().expect("no row panics with it");
        let (first, theirs) = all
            .entry(what.to_owned())
            .or_insert_with(|| (self.column.name, value.clone()));
        ensure!(
            theirs == value,
            "{what}: {value} and, at `{first}`, {theirs}"
        );
        Ok(())
    }
}

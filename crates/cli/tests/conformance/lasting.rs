//! Sandboxes that last: checkpoints, forks, another execution after one was lost, another backend.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::columns::Needs;
use crate::engine::TOOLS;
use crate::lifecycle::{container_of, first_of, shell_of};
use crate::scene::{Scene, Seen};
use rustix::process::{Signal, kill_process};

impl Scene<'_> {
    /// `ringfence` with these words. It must succeed.
    fn done(&self, words: &[&str]) -> Result<String> {
        let output = self.call().finish(words)?;
        ensure!(output.status.success(), "{words:?}: {}", output.tail());
        Ok(output.stdout.trim().to_owned())
    }

    fn sh(&self, id: &str, shell: &str) -> Result<String> {
        self.done(&["sandbox", "exec", id, "--", "sh", "-c", shell])
    }

    fn create(&self) -> Result<String> {
        let folder = self.fixture.folder.to_string_lossy().into_owned();
        let mark = self.mark();
        let words = [
            "sandbox", "create", "--repo", &folder, "--base", "main", "--env", &mark,
        ];
        self.done(&[&words[..], self.column.options].concat())
    }

    /// Removes what a row that failed left.
    pub fn clear(&self) -> Result<()> {
        let lasting = self.fixture.state.join("sandboxes");
        if !fs::read_dir(lasting).is_ok_and(|mut entries| entries.next().is_some()) {
            return Ok(());
        }
        let all: serde_json::Value = serde_json::from_str(&self.done(&["status", "--json"])?)?;
        let rows = all["sandboxes"].as_array().into_iter().flatten();
        let ids: Vec<&str> = rows.filter_map(|row| row["sandbox"].as_str()).collect();
        self.remove(&ids)
    }

    fn remove(&self, ids: &[&str]) -> Result<()> {
        for id in ids {
            self.done(&["sandbox", "rm", id])?;
        }
        Ok(())
    }
}

/// What the files are, in the folder, the home and the temporary directory.
const LOOK: &str = "cd / && find workspace home/agent tmp -path workspace/.git -prune -o -printf '%p %y %m %l\\n' | sort; \
    cat /workspace/a.txt ~/kept /tmp/kept";

/// What an editor or an agent platform does with the files of a sandbox, without a command in it. What a tool
/// wrote is told as every other write is.
pub fn tools(scene: &Scene<'_>) -> Result<Seen> {
    let id = scene.create()?;
    let fs = |words: &[&str], input: &[u8]| -> Result<String> {
        let (verb, rest) = words.split_first().context("a verb")?;
        let words = [&["sandbox", "fs", *verb, &id], rest].concat();
        let output = scene.call().input(input).finish(&words)?;
        ensure!(output.status.success(), "{words:?}: {}", output.tail());
        Ok(output.stdout)
    };
    fs(&["write", "made/by/tool"], b"one\ntwo\n")?;
    fs(
        &["edit", "made/by/tool", "--old", "two", "--new", "three"],
        b"",
    )?;
    let patch = "--- a/made/by/tool\n+++ b/made/by/tool\n@@ -1,2 +1,3 @@\n one\n three\n+four\n";
    fs(&["patch"], patch.as_bytes())?;
    let read = fs(&["read", "made/by/tool"], b"")?;
    ensure!(read == "one\nthree\nfour\n", "{read:?}");
    for (words, wanted) in [
        (&["search", "^thr.e$"][..], "made/by/tool"),
        (&["glob", "made/**"], "made/by/tool"),
        (&["list", "made"], "by"),
        (&["stat", "made/by/tool"], "15"),
    ] {
        let said = fs(words, b"")?;
        ensure!(said.contains(wanted), "{words:?}: {said}");
    }
    fs(&["mkdir", "kept"], b"")?;
    fs(&["mv", "made/by/tool", "kept/tool"], b"")?;
    fs(&["rm", "-r", "made"], b"")?;
    let seen = scene.sh(&id, "cat kept/tool; ls; stat -c %u:%a kept/tool")?;
    ensure!(
        seen.starts_with("one\nthree\nfour\n") && !seen.contains("made"),
        "{seen}"
    );
    let patch = scene.done(&["sandbox", "diff", &id])?;
    ensure!(
        patch.contains("b/kept/tool") && patch.contains("+three"),
        "{patch}"
    );
    scene.remove(&[&id])?;
    Ok(Seen::Held)
}

pub fn checkpoints(scene: &Scene<'_>) -> Result<Seen> {
    let id = scene.create()?;
    scene.sh(
        &id,
        "echo one > a.txt; echo h > ~/kept; echo t > /tmp/kept; mkdir d",
    )?;
    let before = scene.sh(&id, LOOK)?;
    scene.done(&["sandbox", "checkpoint", &id, "--name", "good"])?;
    scene.sh(
        &id,
        "rm -r a.txt src d ~/kept; echo other > /tmp/kept; mkdir src",
    )?;
    let fork = scene.done(&["sandbox", "fork", &id, "--from", "good"])?;
    ensure!(scene.sh(&fork, LOOK)? == before, "the fork is another");
    scene.done(&["sandbox", "rollback", &id, "good"])?;
    let after = scene.sh(&id, LOOK)?;
    ensure!(after == before, "not as it was: {before} and {after}");
    scene.sh(&fork, "echo two > a.txt")?;
    ensure!(
        scene.sh(&id, "cat a.txt")? == "one",
        "the fork is not apart"
    );
    scene.remove(&[&fork, &id])?;
    Ok(Seen::Held)
}

/// The execution dies: it is told, nothing is lost, and the next one goes on.
pub fn replaced(scene: &Scene<'_>) -> Result<Seen> {
    if scene.has_own_kernel() && scene.engine.is_none() {
        return Ok(Seen::Nothing("pid 1 has no process on the host"));
    }
    let id = scene.create()?;
    scene.sh(&id, "echo one > a.txt; echo h > ~/kept; echo t > /tmp/kept")?;
    let before = scene.sh(&id, LOOK)?;
    scene.sh(
        &id,
        "sh -c 'read line < /dev/zero; sleep 1000' > /dev/null 2>&1 &",
    )?;
    match scene.engine {
        Some(engine) if scene.has_own_kernel() => {
            let id = container_of(scene, engine)?;
            engine.docker(&["kill", &id])?;
        }
        _ => kill_process(first_of(shell_of(scene)?)?, Signal::KILL)?,
    }
    // It is told to whoever asks next, or it is asked for at once.
    let words = ["sandbox", "exec", &id, "--replace", "--", "sh", "-c", LOOK];
    let after = scene.call().finish(&words)?;
    ensure!(after.status.success(), "{}", after.tail());
    ensure!(
        after.stdout.trim() == before,
        "not as it was: {before} and {}",
        after.stdout
    );
    scene.remove(&[&id])?;
    Ok(Seen::Held)
}

/// The same workspace, at another backend and back.
pub fn moves(scene: &Scene<'_>) -> Result<Seen> {
    let id = scene.create()?;
    scene.sh(
        &id,
        "echo one > a.txt; rm -r src; mkdir src; echo h > ~/kept; echo t > /tmp/kept",
    )?;
    let before = scene.sh(&id, LOOK)?;
    let there = [
        "sandbox",
        "move",
        &id,
        "--backend",
        "native",
        "--image",
        "host",
    ];
    scene.done(&there)?;
    let after = scene.sh(&id, LOOK)?;
    ensure!(after == before, "not as it was: {before} and {after}");
    scene.sh(&id, "echo two > a.txt")?;
    scene.done(&[&["sandbox", "move", &id], scene.column.options].concat())?;
    let back = scene.sh(&id, LOOK)?;
    ensure!(back == before.replace("one", "two"), "{back}");
    scene.remove(&[&id])?;
    Ok(Seen::Held)
}

/// What `ringfence backends` says is what the rows show.
pub fn claims(scene: &Scene<'_>) -> Result<Seen> {
    let name = scene.column.options[1];
    let image = match scene.column.needs {
        Needs::Elsewhere => &["--image", TOOLS][..],
        _ => &[],
    };
    let text = scene.done(&[&["backends", name, "--json"], image].concat())?;
    let all: serde_json::Value = serde_json::from_str(&text)?;
    let claimed = &all["backends"][0]["guarantees"];
    let result = scene.run(&[], "grep -c '^processor' /proc/cpuinfo; uname -r")?;
    let own = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let told = crate::support::said(&result);
    let is_shared = told.lines().nth(1) == Some(own.trim());
    ensure!(
        !is_shared || claimed["kernel"] == "shared",
        "it has the host's kernel and claims {claimed}"
    );
    let seen = result["observed"]["execs"].as_u64().unwrap_or(0);
    ensure!(
        (claimed["observation"] == "verified") == (seen >= 3),
        "{seen} programs were seen, and it claims {claimed}"
    );
    for limit in ["memory", "processes"] {
        let grades = result["limits"].as_array().context("no limits")?;
        let grade = grades.iter().find(|grade| grade["limit"] == limit);
        let grade = grade
            .map(|grade| grade["grade"].clone())
            .unwrap_or_default();
        ensure!(claimed[limit] == grade, "{limit}: {grade} and {claimed}");
    }
    scene
        .log
        .tell(&format!("{} claims {claimed}", scene.column.name));
    Ok(Seen::Held)
}

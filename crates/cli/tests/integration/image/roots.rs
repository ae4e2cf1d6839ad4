//! Setups that are root of their image: what they leave is there for the agent and gives it nothing,
//! whoever calls.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::image::call;
use crate::image::runs::{busybox, import};
use crate::support::{Call, Fixture, Mode, Sandboxed, expect, in_each_mode, is_root, said};

/// What a setup does as root that an agent must not profit from.
const SETUP: &str = "self > /etc/who; mkdir -p /opt; echo built > /opt/made; \
    chown 5:6 /opt/made 2>/dev/null || echo refused > /etc/chown; \
    cp /bin/self /bin/marked; chmod 6755 /bin/marked; \
    mknod /etc/null c 1 3 2>/dev/null || echo refused > /etc/mknod; \
    mkdir /opt/closed; echo secret > /opt/closed/file; chmod 700 /opt/closed; \
    rm /usr/own; echo other > /etc/mark; echo inside > made; \
    grep CapEff /proc/self/status > /etc/caps";

/// The user's policy: a folder's file may not say `root`.
fn policy(env: &Sandboxed, fixture: &Fixture, setup: &str) -> Result<()> {
    env.look(fixture, &["list"])?;
    let text =
        format!("[environment]\nimage = 'team/saved:2'\nroot = true\nsetup = '''{setup}'''\n");
    std::fs::write(fixture.state.join("policy.toml"), text)?;
    Ok(())
}

fn lines(result: &Value) -> Vec<&str> {
    said(result).lines().collect()
}

/// What is the same for everybody: the agent sees what was made, and is not root by any of it.
fn is_harmless(call: &Call<'_>) -> Result<Value> {
    let first = call.run(
        &[],
        "cat /etc/who /etc/mark made; test -e /usr/own || echo gone; cat /opt/made; self; marked; \
         cat /etc/mknod; test -e /etc/null || echo none",
    )?;
    expect(&first, "status", "done")?;
    let expected = [
        "0 0",
        "other",
        "inside",
        "gone",
        "built",
        "1000 1000",
        "1000 1000",
        "refused",
        "none",
    ];
    ensure!(lines(&first) == expected, "{:?}", lines(&first));
    let result = call.run(
        &[],
        "grep ' / / ' /proc/self/mountinfo | head -n 1; grep CapEff /proc/self/status; cat /etc/caps",
    )?;
    let seen = lines(&result);
    let root = seen.first().copied().unwrap_or_default();
    for flag in ["ro", "nosuid", "nodev"] {
        let flags = root.split(' ').nth(5).unwrap_or_default();
        ensure!(flags.split(',').any(|one| one == flag), "{flag}: {root}");
    }
    ensure!(
        seen[1..] == ["CapEff:\t0000000000000000", "CapEff:\t00000000000000fb"],
        "{seen:?}"
    );
    // What was root's to write is nobody's any more.
    let result = call.run(
        &[],
        "for f in /etc/mark /opt/made /opt/new /bin/marked; do \
         (echo x > $f) 2>/dev/null && echo wrote $f; done; chmod 777 /opt/made 2>/dev/null && echo changed; true",
    )?;
    ensure!(said(&result).is_empty(), "{}", said(&result));
    Ok(first)
}

#[test]
fn a_setup_that_is_root_leaves_nothing_that_makes_an_agent_root() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    in_each_mode("setup-root", |env, fixture| {
        import(env, fixture, &image)?;
        policy(env, fixture, SETUP)?;
        let call = call(env, fixture);
        let first = is_harmless(&call)?;
        let owners = "ls -d /etc/chown 2>/dev/null; stat -c '%u:%g %a' /opt/made; cat /opt/closed/file 2>/dev/null; true";
        let result = call.run(&[], owners)?;
        let notes = first["notes"].to_string();
        match fixture.mode {
            // The owners that they were given, and closed to the agent.
            Mode::Root => {
                ensure!(
                    lines(&result) == ["5:6 755"] || lines(&result) == ["5:6 644"],
                    "{result}"
                );
            }
            // One id: it says what it could not do.
            Mode::Rootless => {
                let seen = lines(&result);
                ensure!(seen[0] == "/etc/chown", "{seen:?}");
                ensure!(
                    notes.contains("cannot give files to other users"),
                    "{notes}"
                );
            }
        }
        Ok(())
    })
}

/// A fixture of somebody with subordinate ids; `None` where there cannot be one.
fn with_ids<'a>(env: &'a Sandboxed, fixture: &'a Fixture) -> Result<Option<Call<'a>>> {
    let has = |program: &str| Path::new("/usr/bin").join(program).exists();
    if !is_root() || !has("newuidmap") || !has("newgidmap") {
        println!("SKIPPED setups with subordinate ids: needs root, newuidmap and newgidmap");
        return Ok(None);
    }
    if fixture.mode == Mode::Root {
        return Ok(None);
    }
    Ok(Some(call(env, fixture).with_ids(&env.path("ids"))?))
}

#[test]
fn subordinate_ids_are_those_of_a_setup_and_of_nobody_afterwards() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    in_each_mode("setup-ids", |env, fixture| {
        let Some(call) = with_ids(env, fixture)? else {
            return Ok(());
        };
        import(env, fixture, &image)?;
        policy(env, fixture, SETUP)?;
        let first = is_harmless(&call)?;
        let notes = first["notes"].to_string();
        ensure!(!notes.contains("other users"), "{notes}");
        // Giving away worked, and all is the caller's now: on the disk and so inside.
        let result = call.run(
            &[],
            "ls -d /etc/chown 2>/dev/null; stat -c %u:%g /opt/made /opt/closed",
        )?;
        ensure!(lines(&result) == ["1000:1000", "1000:1000"], "{result}");
        for parent in ["environments", "workspaces"] {
            let strangers = owned_by_others(&fixture.state.join(parent), fixture)?;
            ensure!(strangers.is_empty(), "{strangers:?}");
        }
        Ok(())
    })
}

/// Everything below that does not belong to who has the folder.
fn owned_by_others(top: &Path, fixture: &Fixture) -> Result<Vec<PathBuf>> {
    use std::os::unix::fs::MetadataExt as _;
    let owner = std::fs::metadata(&fixture.folder)?.uid();
    let (mut open, mut found) = (vec![top.to_owned()], Vec::new());
    while let Some(path) = open.pop() {
        let metadata = path.symlink_metadata()?;
        if metadata.uid() != owner {
            found.push(path.clone());
        }
        if metadata.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        }
    }
    Ok(found)
}

/// Waits until the setup of a fixture says that it is up.
fn until_up(fixture: &Fixture) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let entries = std::fs::read_dir(fixture.state.join("environments"));
        for entry in entries.into_iter().flatten().flatten() {
            let said = std::fs::read_to_string(entry.path().join("stdout"));
            if said.is_ok_and(|said| said.contains("up\n")) {
                return Ok(());
            }
        }
        ensure!(Instant::now() < deadline, "the setup does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_a_killed_setup_left_is_removed_whosever_it_is() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    in_each_mode("setup-killed", |env, fixture| {
        let called = match (fixture.mode, with_ids(env, fixture)?) {
            (_, Some(call)) => call,
            (_, None) => call(env, fixture),
        };
        import(env, fixture, &image)?;
        // Directories that only their owner may look into, and files in them.
        let setup = "mkdir -p /opt/closed/below; echo x > /opt/closed/below/file; echo y > ~/own; \
            chown -R 5:6 /opt/closed 2>/dev/null || true; chmod -R 700 /opt/closed; \
            chown 7:8 ~/own 2>/dev/null || true; echo up; sleep 1000";
        policy(env, fixture, setup)?;
        let run = called.run_live(&[], "true")?;
        until_up(fixture)?;
        run.signal(Signal::KILL)?;
        let _ = run.finish();
        let places = fixture.state.join("workspaces");
        let strangers = owned_by_others(&places, fixture)?;
        println!(
            "{:?}: {} paths of others were left",
            fixture.mode,
            strangers.len()
        );
        // Of whoever has such ids there are some: else nothing is tested here.
        let rest = strangers.iter().any(|path| path.ends_with("closed/below"));
        ensure!(
            rest || fixture.mode == Mode::Rootless && !is_root(),
            "{strangers:?}"
        );
        let rows = called.finish(&["list", "--json"])?;
        rows.exits(0)?;
        let rows: Value = serde_json::from_str(&rows.stdout)?;
        let id = rows[0]["run"].as_str().context("an id")?.to_owned();
        called.finish(&["rm", &id])?.exits(0)?;
        let swept = called.finish(&["gc"])?;
        swept.exits(0)?;
        let left: Vec<_> = std::fs::read_dir(&places)?.collect();
        ensure!(left.is_empty(), "{left:?}: {}", swept.tail());
        let more = called.finish(&["gc", "--json"])?;
        ensure!(more.stdout.trim() == "[]", "{}", more.stdout);
        // And the next one begins anew.
        policy(
            env,
            fixture,
            "test ! -e /opt/closed && echo fine > /etc/mark",
        )?;
        let result = called.run(&[], "cat /etc/mark")?;
        ensure!(said(&result) == "fine\n", "{result}");
        Ok(())
    })
}

#[test]
fn what_a_setup_made_of_the_image_is_verified_as_well() -> Result<()> {
    let Some(image) = busybox()? else {
        return Ok(());
    };
    in_each_mode("root-verify", |env, fixture| {
        import(env, fixture, &image)?;
        let call = call(env, fixture);
        let verify = |setup: &str, code: i32| -> Result<String> {
            policy(env, fixture, setup)?;
            let result = call.run(&[], "true")?;
            let key = result["environment"]["setup_key"]
                .as_str()
                .context("a key")?;
            let output = call.finish(&["environment", "verify", key])?;
            output.exits(code)?;
            Ok(output.stdout)
        };
        let same = "mkdir -p /opt/x; echo same > /opt/x/same; rm /usr/own; ln -s x /opt/link";
        let said = verify(same, 0)?;
        ensure!(said.contains("equal\n"), "{said}");
        let word = "cat /proc/sys/kernel/random/uuid";
        let said = verify(
            &format!("{same}; {word} > /opt/x/word; echo x > /opt/made-$({word})"),
            1,
        )?;
        for line in [
            "root/opt/x/word: other content",
            "root/opt/made-",
            "only in what is kept",
        ] {
            ensure!(said.contains(line), "no `{line}`: {said}");
        }
        ensure!(!said.contains("same") && !said.contains("usr"), "{said}");
        Ok(())
    })
}

//! What a sandbox stands on, as it sees it itself and as its bundle says: areas in memory, `PATH`,
//! and the facts by which an environment can be made again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, expect, in_each_mode, said};

fn file_of(result: &Value, name: &str) -> Result<Value> {
    let bundle = result["bundle"].as_str().context("a bundle")?;
    Ok(serde_json::from_slice(&fs::read(
        PathBuf::from(bundle).join(name),
    )?)?)
}

fn propose(env: &Sandboxed, fixture: &Fixture, text: &str) -> Result<()> {
    env.put(fixture, "ringfence.toml", text)?;
    Ok(())
}

#[test]
fn an_area_in_memory_holds_no_more_than_its_size() -> Result<()> {
    in_each_mode("area", |env, fixture| {
        let text = "[mounts]\n'/var/tmp/db' = { tmpfs = '1M' }\n'/srv/more' = { tmpfs = '4M' }\n";
        propose(env, fixture, text)?;
        // As much as fits, then no more; the other one has its own size.
        let fill = "dd if=/dev/zero of=AREA/big bs=64k count=200 2>&1 | grep -o 'No space left.*'; \
                    stat -c %s AREA/big";
        let shell = format!(
            "echo x > /var/tmp/db/x && cat /var/tmp/db/x; {}; {}; \
             printf '#!/bin/sh\\n' > own; mknod /srv/more/null c 1 3 2>/dev/null || echo no device",
            fill.replace("AREA", "/var/tmp/db"),
            fill.replace("AREA", "/srv/more")
        );
        let result = env.run_with(fixture, &[], &shell)?;
        expect(&result, "status", "done")?;
        let lines: Vec<&str> = said(&result).lines().collect();
        ensure!(lines.len() == 6 && lines[0] == "x", "{result}");
        for (at, most) in [(1, 1_u64 << 20), (3, 4 << 20)] {
            ensure!(lines[at].starts_with("No space left"), "{result}");
            let size: u64 = lines[at + 1].parse()?;
            ensure!(size > most / 2 && size <= most, "{size} of {most}");
        }
        ensure!(lines[5] == "no device", "{result}");
        // Nothing of it is kept, and nobody else sees it.
        expect(&result, "changed_files", vec!["own"])?;
        let again = env.run_with(fixture, &[], "ls -A /var/tmp/db /srv/more")?;
        ensure!(!said(&again).contains("big"), "{again}");
        Ok(())
    })
}

#[test]
fn areas_in_memory_are_no_way_around_its_limit() -> Result<()> {
    in_each_mode("area-memory", |env, fixture| {
        propose(
            env,
            fixture,
            "[mounts]\n'/srv/a' = { tmpfs = '1G' }\n'/srv/b' = { tmpfs = '1G' }\n",
        )?;
        let shell = "for a in a b; do df -B1 --output=size /srv/$a | tail -n 1; done";
        let result = env.run_with(fixture, &["--memory", "64M"], shell)?;
        let sizes = said(&result).split_whitespace().map(str::parse::<u64>);
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        ensure!(
            sizes.len() == 2 && sizes.iter().all(|size| *size == 16 << 20),
            "{sizes:?}"
        );
        Ok(())
    })
}

#[test]
fn an_area_cannot_take_the_place_of_something_of_the_sandbox() -> Result<()> {
    in_each_mode("area-place", |env, fixture| {
        for place in ["/", "/proc", "/workspace", "/workspace/x", "/dev", "/usr"] {
            let text = format!("[mounts]\n'{place}' = {{ tmpfs = '1M' }}\n");
            propose(env, fixture, &text)?;
            let output = env.call(fixture).finish(&["run", "--", "true"])?;
            ensure!(!output.status.success(), "{place}: {}", output.tail());
            let why = format!("`{place}` cannot be shown inside");
            ensure!(output.stderr.contains(&why), "{place}: {}", output.tail());
        }
        Ok(())
    })
}

#[test]
fn directories_of_path_lead_the_setup_and_the_agent() -> Result<()> {
    in_each_mode("path", |env, fixture| {
        let text = "[environment]\n\
                    setup = '''mkdir -p ~/.local/bin .tools/bin\n\
                    printf '#!/bin/sh\\necho of the home\\n' > ~/.local/bin/first\n\
                    printf '#!/bin/sh\\necho of the folder\\n' > .tools/bin/second\n\
                    chmod +x ~/.local/bin/first .tools/bin/second\n\
                    first > made; second >> made'''\n\
                    path = ['~/.local/bin', '.tools/bin', '/opt/none/bin']\n";
        propose(env, fixture, text)?;
        let shell = "first; second; cat made; echo $PATH";
        let result = env.run_with(fixture, &[], shell)?;
        let both = "of the home\nof the folder\n";
        let path = "/home/agent/.local/bin:/workspace/.tools/bin:/opt/none/bin:/usr/local/sbin";
        ensure!(
            said(&result).starts_with(&format!("{both}{both}{path}")),
            "{result}"
        );
        // What the user sets counts more.
        let result = env.run_with(fixture, &["--env", "PATH=/usr/bin:/bin"], "echo $PATH")?;
        ensure!(said(&result) == "/usr/bin:/bin\n", "{result}");
        // Another list is another setup.
        let keys = |text: &str| text.lines().count();
        let before = keys(&env.look(fixture, &["environment", "list", "--json"])?);
        propose(env, fixture, &text.replace("/opt/none", "/opt/other"))?;
        env.run_with(fixture, &[], "true")?;
        let after = keys(&env.look(fixture, &["environment", "list", "--json"])?);
        ensure!(after == before + 1, "{before} and {after}");
        Ok(())
    })
}

#[test]
fn what_a_run_stood_on_is_in_its_bundle() -> Result<()> {
    in_each_mode("facts", |env, fixture| {
        env.put(fixture, "lock", "1")?;
        let text = "[environment]\nsetup = 'echo c > $PIP_CACHE_DIR/c; echo x > made'\n\
                    key = ['lock']\n[environment.cache]\npip = true\nuv = true\n";
        propose(env, fixture, text)?;
        let first = env.run_with(fixture, &[], "true")?;
        let second = env.run_with(fixture, &[], "true")?;
        let facts = &second["environment"];
        // The key is the one by which it can be shown, verified and removed.
        let key = facts["setup_key"].as_str().context("a key")?;
        let shown = env.look(fixture, &["environment", "show", key, "--json"])?;
        ensure!(
            serde_json::from_str::<Value>(&shown)?["key"] == key,
            "{shown}"
        );
        ensure!(first["environment"]["setup_key"] == key, "{first}");
        // The first one began with empty caches, the second with what the setup left.
        let caches = facts["caches"].as_array().context("caches")?;
        ensure!(caches.len() == 2, "{facts}");
        ensure!(
            caches[0]["kind"] == "pip" && caches[0]["generation"] == 1,
            "{facts}"
        );
        ensure!(
            caches[0]["scope"]
                .as_str()
                .is_some_and(|scope| scope.len() == 32)
        );
        // Versions are what programs of the sandbox say.
        let python = env.run_with(fixture, &[], "python3 --version")?;
        let version = said(&python).trim().to_owned();
        ensure!(
            facts["tools"]["python3"] == version.as_str(),
            "{facts} and {version}"
        );
        ensure!(facts["image"].is_null(), "{facts}");
        for name in ["result.json", "manifest.json"] {
            let file = file_of(&second, name)?;
            ensure!(
                file["environment"] == *facts,
                "{name}: {}",
                file["environment"]
            );
        }
        env.look(fixture, &["verify"])?;
        // Another lock file, another key.
        env.put(fixture, "lock", "2")?;
        let third = env.run_with(fixture, &[], "true")?;
        ensure!(third["environment"]["setup_key"] != key, "{third}");
        Ok(())
    })
}

/// The store of nix is shown read-only; what a flake brings has to be in it.
#[test]
fn nix_is_there_for_a_setup_where_it_is_installed() -> Result<()> {
    let places = [
        "/nix/var/nix/profiles/default/bin",
        "/run/current-system/sw/bin",
    ];
    let found = places
        .iter()
        .find(|place| Path::new(place).join("nix").exists());
    let Some(place) = found else {
        println!("SKIPPED nix as a setup: nix is not installed in {places:?}");
        return Ok(());
    };
    in_each_mode("nix", |env, fixture| {
        let policy = format!(
            "[[files.mount]]\nhost = '/nix'\ninside = '/nix'\n[environment]\npath = ['{place}']\n"
        );
        fs::write(fixture.state.join("policy.toml"), policy)?;
        propose(
            env,
            fixture,
            "[environment]\nsetup = 'nix --version > made'\n",
        )?;
        let result = env.run_with(fixture, &[], "cat made; nix --version")?;
        ensure!(said(&result).matches("nix (Nix)").count() == 2, "{result}");
        Ok(())
    })
}

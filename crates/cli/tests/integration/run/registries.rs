//! Setups of real package managers, through the gate, from the registries that this machine is
//! configured for: once, and then there without any network.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::support::{Call, Fixture, Sandboxed, expect, in_each_mode_in_turn, is_root, said};

/// What a program says outside, with nothing of the tester's settings; `None` where it fails, and
/// why is printed. It needs what the test needs: the program, and its registry.
fn asked(what: &str, shell: &str, place: &tempfile::TempDir) -> Result<Option<()>> {
    let output = Command::new("timeout")
        .args(["60", "sh", "-ec", shell])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", place.path())
        .current_dir(place.path())
        .output()?;
    if output.status.success() {
        return Ok(Some(()));
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let why = why.lines().rfind(|line| !line.trim().is_empty());
    println!("SKIPPED {what}: {}", why.unwrap_or("it cannot be had here"));
    Ok(None)
}

/// The first run sets up, the next one has it: where that can be tried, without any network.
fn once_and_then_offline(
    env: &Sandboxed,
    fixture: &Fixture,
    preset: &str,
    (shell, expected): (&str, &str),
) -> Result<()> {
    let options = ["--setup-network", preset];
    let first = env.run_with(fixture, &options, shell)?;
    expect(&first, "status", "done")?;
    ensure!(said(&first) == expected, "{first}");
    // The agent itself reaches nothing.
    ensure!(first["policy"]["network"].is_null(), "{}", first["policy"]);
    let call: Call<'_> = env.call(fixture);
    let call = if is_root() {
        call.before(&["unshare", "--net"])
    } else {
        call
    };
    let second = call.run(&options, shell)?;
    expect(&second, "status", "done")?;
    ensure!(said(&second) == expected, "{second}");
    let key = |result: &serde_json::Value| result["environment"]["setup_key"].clone();
    ensure!(
        key(&first) == key(&second) && key(&first).is_string(),
        "{second}"
    );
    let listed = env.look(fixture, &["environment", "list", "--json"])?;
    ensure!(listed.lines().count() == 1, "{listed}");
    // Nothing of it is taken for the agent's work.
    expect(&second, "changed_files", Vec::<String>::new())?;
    let cache = &second["environment"]["caches"][0];
    ensure!(cache["generation"] == 1, "{cache}");
    Ok(())
}

#[test]
fn packages_of_pip_are_installed_once() -> Result<()> {
    let place = tempfile::tempdir()?;
    let probe = "python3 -m venv v; v/bin/pip download -q --no-deps -d x six==1.16.0";
    if asked("packages of pip", probe, &place)?.is_none() {
        return Ok(());
    }
    in_each_mode_in_turn("setup-pip", |env, fixture| {
        env.put(fixture, "requirements.txt", "six==1.16.0\n")?;
        let text = "[environment]\n\
            setup = 'python3 -m venv .venv && .venv/bin/pip install -r requirements.txt'\n\
            key = ['requirements.txt']\nenv = { VIRTUAL_ENV = '/workspace/.venv' }\n\
            [environment.cache]\npip = true\n";
        env.put(fixture, "ringfence.toml", text)?;
        let look = ".venv/bin/python -c 'import six; print(six.__version__)'";
        once_and_then_offline(env, fixture, "preset:pypi", (look, "1.16.0\n"))
    })
}

#[test]
fn packages_of_npm_are_installed_once() -> Result<()> {
    const PACKAGE: &str = r#"{"name":"a","version":"1.0.0","dependencies":{"is-number":"7.0.0"}}"#;
    let place = tempfile::tempdir()?;
    std::fs::write(place.path().join("package.json"), PACKAGE)?;
    // Without addresses: where the packages come from is what inside is configured.
    let probe = "npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit \
                 --ignore-scripts >/dev/null";
    if asked("packages of npm", probe, &place)?.is_none() {
        return Ok(());
    }
    let lock = std::fs::read(place.path().join("package-lock.json")).context("no lock file")?;
    in_each_mode_in_turn("setup-npm", |env, fixture| {
        env.put(fixture, "package.json", PACKAGE)?;
        env.put(fixture, "package-lock.json", &lock)?;
        let text = "[environment]\nsetup = 'npm ci --no-audit --no-fund'\n\
            key = ['package-lock.json']\n[environment.cache]\nnpm = true\n";
        env.put(fixture, "ringfence.toml", text)?;
        let look = "node -p \"require('is-number')(7)\"";
        once_and_then_offline(env, fixture, "preset:npm", (look, "true\n"))
    })
}

//! Programs that the user has below the home work inside by grants that `init` proposes, and nothing
//! else of the home is there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::support::{Fixture, Mode, Sandboxed, in_each_mode, is_root, said};

/// A home outside of `/tmp`: sandboxes have a `/tmp` of their own.
fn home() -> Result<Option<TempDir>> {
    for place in ["/srv", "/opt", env!("CARGO_TARGET_TMPDIR")] {
        let hidden = ["/tmp", "/var/tmp", "/root"]
            .iter()
            .any(|own| place.starts_with(own));
        if let (false, Ok(home)) = (hidden, tempfile::tempdir_in(place)) {
            fs::set_permissions(home.path(), Permissions::from_mode(0o755))?;
            return Ok(Some(home));
        }
    }
    println!("SKIPPED toolchains: there is no place for a home outside of /tmp");
    Ok(None)
}

/// A program that is a script, written by another process.
fn program(home: &Path, path: &str, script: &str) -> Result<()> {
    let path = home.join(path);
    fs::create_dir_all(path.parent().context("a path")?)?;
    let line = "printf '%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    let status = Command::new("sh")
        .args(["-c", line, "sh", &format!("#!/bin/sh\n{script}")])
        .arg(&path)
        .status()?;
    ensure!(status.success());
    Ok(())
}

fn file(home: &Path, path: &str, text: &str) -> Result<()> {
    let path = home.join(path);
    fs::create_dir_all(path.parent().context("a path")?)?;
    Ok(fs::write(path, text)?)
}

/// `ringfence init --user --yes`, and then a command inside.
fn inside(
    env: &Sandboxed,
    fixture: &Fixture,
    variables: &[(&str, &str)],
    shell: &str,
) -> Result<serde_json::Value> {
    let mut call = env.call(fixture);
    for (name, value) in variables {
        call = call.variable(name, value);
    }
    let refused = call.finish(&["init", "--user"])?;
    refused.exits(2)?;
    ensure!(
        refused.stderr.contains("`--yes` adds it"),
        "{}",
        refused.stderr
    );
    call.finish(&["init", "--user", "--yes"])?.exits(0)?;
    // Where the folder proposes a setup, that is another matter.
    let _ = fs::remove_file(fixture.folder.join("ringfence.toml"));
    call.run(&[], shell)
}

#[test]
fn granted_toolchains_work_and_nothing_else_of_the_home_is_there() -> Result<()> {
    let Some(home) = home()? else { return Ok(()) };
    let home = home.path();
    program(
        home,
        ".nvm/versions/node/v20.0.0/bin/node",
        "echo node of 20",
    )?;
    program(
        home,
        ".nvm/versions/node/v22.0.0/bin/node",
        "echo node of 22",
    )?;
    program(
        home,
        ".nvm/versions/node/v22.0.0/bin/npm",
        "echo npm; cat \"$0\"/../../etc/npmrc",
    )?;
    file(home, ".nvm/versions/node/v22.0.0/lib/x", "")?;
    program(
        home,
        ".pyenv/versions/3.99.0/bin/python3",
        "echo a python that is only here",
    )?;
    program(home, ".local/bin/uv", "echo uv")?;
    program(home, ".cargo/bin/cargo", "echo cargo in $RUSTUP_HOME")?;
    file(home, ".rustup/toolchains/stable-x/bin/cargo", "")?;
    for secret in [
        ".cargo/credentials.toml",
        ".cargo/registry/token",
        ".ssh/id_ed25519",
        ".nvm/versions/node/v22.0.0/etc/npmrc",
        ".local/share/uv/credentials/credentials.toml",
        ".local/bin/other",
        ".rustup/other",
        "canary",
    ] {
        file(home, secret, "canary-of-home")?;
    }
    let home = home.to_str().context("a path")?;
    in_each_mode("toolchains", |env, fixture| {
        for (name, text) in [
            (".nvmrc", "22\n"),
            (".python-version", "3.99\n"),
            (".tool-versions", "uv 1\n"),
            ("rust-toolchain", "stable\n"),
        ] {
            env.put(fixture, name, text)?;
        }
        let shell = format!(
            "node; npm; python3; uv; cargo; echo -- ; find {home} | sort; \
             cat -- $(find {home} -type f) | grep -c canary-of-home; \
             echo x > {home}/.cargo/bin/cargo || echo read-only; \
             echo x > {home}/.cargo/x || echo not there"
        );
        let result = inside(env, fixture, &[("HOME", home)], &shell)?;
        let output = said(&result);
        for words in [
            "node of 22\n",
            "npm\n",
            "a python that is only here\n",
            "uv\n",
            &format!("cargo in {home}/.rustup\n"),
            "\n0\n",
            "read-only\n",
            "not there\n",
        ] {
            ensure!(output.contains(words), "no `{words}` in {result}");
        }
        for hidden in [
            "credentials",
            ".ssh",
            "npmrc",
            "v20.0.0",
            "/canary",
            "other",
            "registry",
        ] {
            ensure!(!output.contains(hidden), "`{hidden}` in {result}");
        }
        let call = env.call(fixture).variable("HOME", home);
        let doctor = call.finish(&["doctor"])?;
        let granted = |name: &str| {
            let mut lines = doctor.stdout.lines();
            lines.any(|line| line.trim_start().starts_with(name) && line.contains(" granted "))
        };
        for name in ["rustup", "nvm 22.0.0", "uv", "pyenv 3.99.0"] {
            ensure!(granted(name), "{name}: {}", doctor.stdout);
        }
        // Nothing is left to grant.
        let again = call.finish(&["init", "--json"])?;
        let grants = &again.json.context("an object")?["grants"];
        ensure!(grants["mounts"] == serde_json::json!([]), "{grants}");
        ensure!(grants["path"] == serde_json::json!([]), "{grants}");
        Ok(())
    })
}

/// The toolchain that these tests are built with, where it is one of rustup's.
fn real_rust() -> Option<(PathBuf, PathBuf)> {
    let directory = |name: &str, usual: &str| {
        let own = std::env::var_os(name).map(PathBuf::from);
        let home = std::env::home_dir()?.join(usual);
        own.or(Some(home)).filter(|path| path.is_dir())
    };
    let rustup = directory("RUSTUP_HOME", ".rustup")?;
    let cargo = directory("CARGO_HOME", ".cargo")?;
    let whole = rustup.join("toolchains").is_dir() && cargo.join("bin/rustup").exists();
    whole.then_some((rustup, cargo))
}

#[test]
fn a_real_cargo_of_rustup_builds_offline() -> Result<()> {
    let Some((rustup, cargo)) = real_rust() else {
        println!("SKIPPED a real cargo: there is no rustup");
        return Ok(());
    };
    if !is_root() {
        println!("SKIPPED a real cargo as root: the tests do not run as root");
        return Ok(());
    }
    in_each_mode("rust", |env, fixture| {
        // Below the home of root nobody else sees anything.
        if fixture.mode == Mode::Rootless {
            return Ok(());
        }
        let source = "fn main() { println!(\"built inside\"); }\n";
        env.put(
            fixture,
            "Cargo.toml",
            "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
        )?;
        env.put(
            fixture,
            "Cargo.lock",
            "version = 3\n\n[[package]]\nname = \"small\"\nversion = \"0.1.0\"\n",
        )?;
        env.put(fixture, "src/main.rs", source)?;
        let (rustup, cargo) = (rustup.to_string_lossy(), cargo.to_string_lossy());
        let variables = [
            ("RUSTUP_HOME", rustup.as_ref()),
            ("CARGO_HOME", cargo.as_ref()),
        ];
        let result = inside(
            env,
            fixture,
            &variables,
            "cargo run --offline -q && ls -A ~/.cargo",
        )?;
        ensure!(said(&result).starts_with("built inside\n"), "{result}");
        ensure!(!said(&result).contains("credentials"), "{result}");
        Ok(())
    })
}

/// A real program of the system at another place, or a script where there is none.
fn real(home: &Path, path: &str, program: &str) -> Result<()> {
    let found = ["/usr/bin", "/bin"].map(|directory| Path::new(directory).join(program));
    let Some(found) = found.iter().find(|path| path.is_file()) else {
        println!("SKIPPED a real {program}: it is not in /usr/bin; a script stands for it");
        return self::program(home, path, &format!("echo {program}"));
    };
    let path = home.join(path);
    fs::create_dir_all(path.parent().context("a path")?)?;
    // A copy that this process wrote could not be executed while another one forks.
    let copied = Command::new("cp")
        .arg("-L")
        .arg(found)
        .arg(&path)
        .status()?;
    ensure!(copied.success());
    Ok(())
}

#[test]
fn each_layout_of_toolchains_serves_the_setup_and_the_agent() -> Result<()> {
    let Some(home) = home()? else { return Ok(()) };
    let home = home.path();
    let layouts = [
        (
            "nvm",
            ".nvmrc",
            "22\n",
            ".nvm/versions/node/v22.1.0/bin",
            "node",
        ),
        (
            "pyenv",
            ".python-version",
            "3.99.0\n",
            ".pyenv/versions/3.99.0/bin",
            "python3",
        ),
        ("uv", ".tool-versions", "uv 1.0.0\n", ".local/bin", "uv"),
        (
            "go",
            "go.mod",
            "module x\n\ngo 1.99.0\n",
            "sdk/go1.99.0/bin",
            "go",
        ),
        (
            "rustup",
            "rust-toolchain",
            "stable\n",
            ".cargo/bin",
            "cargo",
        ),
    ];
    for (_, _, _, directory, name) in layouts {
        let path = format!("{directory}/{name}");
        match name {
            "node" | "python3" => real(home, &path, name)?,
            "cargo" => program(home, &path, "echo cargo in $RUSTUP_HOME")?,
            "go" => program(home, &path, "echo go in $GOROOT")?,
            name => program(home, &path, &format!("echo {name}"))?,
        }
        file(
            home,
            &format!("{directory}/../../secret-{name}"),
            "canary-of-home",
        )?;
    }
    file(home, ".rustup/toolchains/stable-x/bin/cargo", "")?;
    file(home, ".netrc", "canary-of-home")?;
    let home = home.to_str().context("a path")?;
    in_each_mode("layouts", |env, fixture| {
        for (manager, pin, text, directory, name) in layouts {
            let call = env.call(fixture).variable("HOME", home);
            let policy = fixture.state.join("policy.toml");
            let _ = fs::remove_file(&policy);
            env.put(fixture, pin, text)?;
            call.finish(&["init", "--user", "--yes"])?.exits(0)?;
            let setup = format!(
                "[environment]\nsetup = '''command -v {name} > made; {name} --version >> made'''\n"
            );
            env.put(fixture, "ringfence.toml", setup)?;
            let shell = format!(
                "cat made; echo --; command -v {name}; {name} --version; echo --; \
                 grep -r canary-of-home {home} 2>/dev/null | wc -l; \
                 echo x > {home}/{directory}/{name} 2>/dev/null || echo read-only"
            );
            let result = call.run(&[], &shell)?;
            let output = said(&result);
            let parts: Vec<&str> = output.split("--\n").collect();
            ensure!(
                parts.len() == 3 && parts[0] == parts[1],
                "{manager}: {result}"
            );
            let place = format!("{home}/{directory}/{name}\n");
            ensure!(parts[0].starts_with(&place), "{manager}: {result}");
            ensure!(
                parts[0].lines().count() >= 2,
                "{manager} says nothing: {result}"
            );
            ensure!(parts[2] == "0\nread-only\n", "{manager}: {result}");
            // What is seen of the home is the toolchain, and the directories that lead to it.
            let seen = call.run(&[], &format!("find {home} -maxdepth 1 -mindepth 1"))?;
            let top = directory.split('/').next().context("a directory")?;
            for line in said(&seen).lines() {
                let known = [top, ".rustup"]
                    .iter()
                    .any(|own| line == format!("{home}/{own}"));
                ensure!(known, "{manager}: {line}");
            }
            fs::remove_file(fixture.folder.join(pin))?;
            fs::remove_file(fixture.folder.join("ringfence.toml"))?;
        }
        Ok(())
    })
}

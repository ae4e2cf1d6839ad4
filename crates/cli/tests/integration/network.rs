//! Policies of the network and secrets, from end to end: a real sandbox, a real gate, real clients.
//!
//! What answers is a double on this machine that a policy names; nothing here leaves the machine.

mod agents;
mod model;
mod presets;
mod secrets;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use ringfence_model::gate::GATE_ID;
use serde_json::Value;

use crate::double::Double;
use crate::support::{Fixture, Mode, Sandboxed, expect, in_each_mode_in_turn, said};

/// A policy file beside the folder, as the host's own.
fn policy(fixture: &Fixture, text: &str) -> Result<PathBuf> {
    let path = fixture.folder.with_file_name("policy.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}

fn run(env: &Sandboxed, fixture: &Fixture, text: &str, shell: &str) -> Result<Value> {
    let path = policy(fixture, text)?;
    let path = path.to_string_lossy();
    env.run_with(fixture, &["--policy", &path], shell)
}

/// What the journal says of the network, one line each: `denied host a.example`.
fn traffic(env: &Sandboxed, fixture: &Fixture, of: &str) -> Result<Vec<String>> {
    let text = env.look(fixture, &["audit", of, "--json"])?;
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let mut all = Vec::new();
    for line in lines {
        let event = &line?["event"];
        if event["kind"] == "gate_lost" {
            all.push("lost".to_owned());
        }
        if event["kind"] != "network" {
            continue;
        }
        let result = &event["result"];
        let words = [&result["is"], &result["reason"], &event["host"]];
        let words: Vec<&str> = words.iter().filter_map(|word| word.as_str()).collect();
        all.push(words.join(" "));
    }
    Ok(all)
}

/// Tries names, addresses and sockets that no rule allows; says `REACHED` where one answers.
const NOWHERE: &str = r#"
for target in http://denied.example https://denied.example http://1.1.1.1 http://169.254.169.254 \
    http://127.0.0.1:22 http://[::1]:22 http://10.0.0.1 http://localhost.allowed.example.evil.example
do
    curl -sf -m 5 -o /dev/null "$target" && echo "REACHED $target"
    curl -sf -m 5 --noproxy '*' -o /dev/null "$target" && echo "REACHED $target directly"
    curl -sf -m 5 -x socks5h://127.64.0.1:1080 -o /dev/null "$target" && echo "REACHED $target by socks"
done
timeout 3 bash -c 'exec 3<>/dev/tcp/127.64.9.9/443' 2>/dev/null && echo REACHED an address that no name has
timeout 3 bash -c 'exec 3<>/dev/udp/1.1.1.1/53 && echo x >&3' 2>/dev/null && echo REACHED by datagram
getent hosts denied.example && echo REACHED by name
true
"#;

#[test]
fn r59_nothing_is_reached_without_a_policy() -> Result<()> {
    in_each_mode_in_turn("offline", |env, fixture| {
        let result = env.run_with(fixture, &[], NOWHERE)?;
        ensure!(!said(&result).contains("REACHED"), "{}", said(&result));
        let shell = "cat /etc/resolv.conf; env | grep -i proxy; true";
        let result = env.run_with(fixture, &[], shell)?;
        ensure!(said(&result).is_empty(), "{}", said(&result));
        ensure!(traffic(env, fixture, "last")?.is_empty());
        Ok(())
    })
}

#[test]
fn r60_only_what_a_rule_allows_is_reached_and_refusals_teach() -> Result<()> {
    let double = Double::start()?;
    in_each_mode_in_turn("rules", |env, fixture| {
        let text = format!(
            "[network]\nallow = ['GET api.example/v1/**']\n[network.mock]\n'api.example' = 'http://127.0.0.1:{}'",
            double.port
        );
        let shell = format!(
            r#"{NOWHERE}
curl -sS https://api.example/v1/a; curl -sS --noproxy '*' https://api.example/v1/b
curl -sS http://api.example/v1/c; curl -sS -x socks5h://127.64.0.1:1080 https://api.example/v1/d
curl -sS https://api.example/v2/a; echo
curl -sS -X POST https://api.example/v1/a; echo
curl -sS http://denied.example/; echo
python3 -c "import urllib.request as u; print(u.urlopen('https://api.example/v1/e').read())"
true"#
        );
        let result = run(env, fixture, &text, &shell)?;
        let said = said(&result);
        ensure!(!said.contains("REACHED"), "{said}");
        for name in ["a", "b", "c", "d", "e"] {
            let asked = format!("you asked for /v1/{name}");
            ensure!(said.contains(&asked), "{asked}: {said}");
        }
        for (reason, line) in [
            ("path", "GET api.example/v2/a"),
            ("method", "POST api.example/v1/a"),
            ("host", "GET denied.example/"),
        ] {
            ensure!(said.contains(&format!("\"reason\":\"{reason}\"")), "{said}");
            ensure!(said.contains(&format!("\"allow\":\"{line}")), "{said}");
        }
        let seen = traffic(env, fixture, "last")?;
        for expected in [
            "allowed api.example",
            "denied path api.example",
            "denied method api.example",
            "denied host denied.example",
            "denied host 169.254.169.254",
        ] {
            ensure!(
                seen.iter().any(|line| line == expected),
                "{expected}: {seen:?}"
            );
        }
        let bundle = result["bundle"].as_str().unwrap_or_default();
        env.look(fixture, &["verify", bundle])?;
        ensure!(
            env.leftovers(fixture).is_empty(),
            "{:?}",
            env.leftovers(fixture)
        );
        Ok(())
    })
}

/// net-018: a list with nothing in it allows nothing.
#[test]
fn an_empty_list_allows_nothing() -> Result<()> {
    in_each_mode_in_turn("empty", |env, fixture| {
        let result = run(env, fixture, "[network]\nallow = []", NOWHERE)?;
        ensure!(!said(&result).contains("REACHED"), "{}", said(&result));
        Ok(())
    })
}

/// The folder's own file narrows and never widens.
#[test]
fn cfg_006_the_folders_own_file_cannot_widen() -> Result<()> {
    let double = Double::start()?;
    in_each_mode_in_turn("widen", |env, fixture| {
        let proposal = "[network]\nallow = ['*', 'api.example']\n[network.mock]\n'evil.example' = 'http://127.0.0.1:1'\n[secrets.HOME]\nfrom = 'env:HOME'\nhosts = ['api.example']\n[[files.mount]]\nhost = '/etc'\ninside = '/data'\n[env]\npass = ['PATH', 'SECRET_OF_HOST']";
        env.put(fixture, "ringfence.toml", proposal)?;
        let shell = "curl -s -m 5 https://api.example/x; curl -sf -m 5 https://evil.example && echo REACHED; ls /data; env | grep SECRET_OF_HOST; true";
        let alone = env
            .call(fixture)
            .variable("SECRET_OF_HOST", "x")
            .run(&[], shell)?;
        ensure!(said(&alone).is_empty(), "{}", said(&alone));
        ensure!(
            alone["notes"].to_string().contains("ringfence.toml"),
            "{alone}"
        );
        let host = format!(
            "[network.mock]\n'api.example' = 'http://127.0.0.1:{}'",
            double.port
        );
        let result = run(env, fixture, &host, shell)?;
        ensure!(!said(&result).contains("REACHED"), "{}", said(&result));
        Ok(())
    })
}

/// A folder that asks for nothing gets nothing, of a double either.
#[test]
fn the_folders_own_file_takes_doubles_away() -> Result<()> {
    let double = Double::start()?;
    in_each_mode_in_turn("less", |env, fixture| {
        env.put(fixture, "ringfence.toml", "[network]\nallow = []")?;
        let text = format!(
            "[network]\nallow = ['GET api.example/open/**']\n[network.mock]\n'api.example' = 'http://127.0.0.1:{port}'\n'other.example' = 'http://127.0.0.1:{port}'",
            port = double.port
        );
        let shell = "for url in https://api.example/open/a https://api.example/x https://other.example/; do curl -s -m 5 $url; done; true";
        let result = run(env, fixture, &text, shell)?;
        ensure!(!said(&result).contains("you asked"), "{}", said(&result));
        Ok(())
    })
}

/// A gate that is killed takes the network with it, and nothing else.
#[test]
fn a_gate_that_dies_is_told_of() -> Result<()> {
    let double = Double::start()?;
    in_each_mode_in_turn("killed", |env, fixture| {
        let text = format!(
            "[network.mock]\n'api.example' = 'http://127.0.0.1:{}'",
            double.port
        );
        let path = policy(fixture, &text)?;
        let shell = "curl -sS https://api.example/one; echo ready; read x; curl -sS -m 5 https://api.example/two && touch reached; echo fine > result";
        let path = path.to_string_lossy();
        let mut live = env.call(fixture).run_live(&["--policy", &path], shell)?;
        live.until("ready")?;
        let gates = children(live.pid(), "gate");
        ensure!(gates.len() == 1, "{gates:?}");
        rustix::process::kill_process(gates[0], rustix::process::Signal::KILL)?;
        live.say("go on\n")?;
        live.finish()?;
        ensure!(traffic(env, fixture, "last")?.contains(&"lost".to_owned()));
        let shown: Value = serde_json::from_str(&env.look(fixture, &["show", "--json"])?)?;
        expect(&shown, "status", "done")?;
        ensure!(
            shown["changed_files"].to_string().contains("result"),
            "{shown}"
        );
        Ok(())
    })
}

#[test]
fn gate_has_a_user_of_its_own_no_capabilities_and_a_system_call_filter() -> Result<()> {
    let double = Double::start()?;
    in_each_mode_in_turn("privileges", |env, fixture| {
        let text = format!(
            "[network.mock]\n'api.example' = 'http://127.0.0.1:{}'",
            double.port
        );
        let path = policy(fixture, &text)?;
        let path = path.to_string_lossy();
        let shell = "curl -sS https://api.example/one; echo; echo ready; read x";
        let mut live = env.call(fixture).run_live(&["--policy", &path], shell)?;
        // The double answered through the gate.
        live.until_having("you asked for /one")?;
        live.until("ready")?;
        let gates = children(live.pid(), "gate");
        ensure!(gates.len() == 1, "{gates:?}");
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", gates[0].as_raw_nonzero()))?;
        let has = |name: &str, value: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let all: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
            ensure!(
                all.iter().all(|own| *own == value) && !all.is_empty(),
                "{name} {status}"
            );
            Ok(())
        };
        if fixture.mode == Mode::Root {
            has("Uid:", &GATE_ID.to_string())?;
            has("Gid:", &GATE_ID.to_string())?;
            has("CapBnd:", "0000000000000000")?;
        }
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            has(set, "0000000000000000")?;
        }
        has("NoNewPrivs:", "1")?;
        has("Seccomp:", "2")?;
        live.say("go on\n")?;
        live.finish()?;
        Ok(())
    })
}

/// Processes below one that have this word in their command line.
fn children(parent: u32, word: &str) -> Vec<rustix::process::Pid> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has = line
            .split(|byte| *byte == 0)
            .any(|part| part == word.as_bytes());
        let is_below = |pid: i32| {
            let mut at = pid;
            while at > 1 {
                if at.cast_unsigned() == parent {
                    return true;
                }
                let status = std::fs::read_to_string(format!("/proc/{at}/status"));
                let above = status.unwrap_or_default();
                let above = above.lines().find_map(|line| line.strip_prefix("PPid:"));
                at = above.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            }
            false
        };
        if has && is_below(pid) {
            found.extend(rustix::process::Pid::from_raw(pid));
        }
    }
    found
}

/// Rules of a sandbox that lasts come and go while it runs.
#[test]
fn rules_change_while_a_sandbox_runs() -> Result<()> {
    let double = Double::start()?;
    in_each_mode_in_turn("change", |env, fixture| {
        let text = format!(
            "[network]\nallow = ['GET api.example/open/**']\n[network.mock]\n'api.example' = 'http://127.0.0.1:{}'",
            double.port
        );
        let path = policy(fixture, &text)?;
        let path = path.to_string_lossy();
        let id = env.look(fixture, &["sandbox", "create", "--policy", &path])?;
        let id = id.trim();
        let ask = |path: &str| {
            let url = format!("https://api.example{path}");
            env.look(fixture, &["sandbox", "exec", id, "--", "curl", "-sS", &url])
        };
        ensure!(ask("/open/a")?.contains("you asked for /open/a"));
        ensure!(ask("/closed/a")?.contains("denied by ringfence"));
        let change =
            |words: &[&str]| env.look(fixture, &[&["sandbox", "network", id], words].concat());
        change(&["--allow", "GET api.example/closed/**"])?;
        ensure!(ask("/closed/a")?.contains("you asked for /closed/a"));
        let shown = change(&["--revoke", "GET api.example/open/**"])?;
        ensure!(!shown.contains("/open/"), "{shown}");
        ensure!(ask("/open/a")?.contains("denied by ringfence"));
        // Nothing is left of the double when its rules are gone.
        change(&["--offline"])?;
        for path in ["/open/a", "/closed/a"] {
            ensure!(ask(path).is_err(), "{path} is reached offline");
        }
        change(&["--allow", "GET api.example/closed/**"])?;
        // They are there in the next execution as well.
        env.look(fixture, &["sandbox", "stop", id])?;
        ensure!(ask("/open/a")?.contains("denied by ringfence"));
        ensure!(ask("/closed/a")?.contains("you asked for /closed/a"));
        let seen = traffic(env, fixture, id)?;
        ensure!(
            seen.contains(&"denied path api.example".to_owned()),
            "{seen:?}"
        );
        env.look(fixture, &["sandbox", "rm", id])?;
        ensure!(
            env.leftovers(fixture).is_empty(),
            "{:?}",
            env.leftovers(fixture)
        );
        Ok(())
    })
}

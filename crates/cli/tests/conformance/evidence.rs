//! What is known of a run afterwards: every program, who wrote what, and the verdicts of the host's own
//! checks.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::scene::{Scene, Seen};
use crate::support::expect;

/// A script with children, a replaced program, a static one, one from memory and one without a name.
const SCRIPT: &str = r#"
/bin/echo one; sh -c '/bin/echo two; exec /bin/echo three'; (/bin/echo four &) ; wait
printf '#!/bin/sh\n/bin/echo five\n' > s; chmod +x s; ./s; env -i /bin/echo six
cp "$(command -v busybox)" /tmp/fixed; /tmp/fixed echo seven
python3 -c 'import os
m = os.memfd_create("hid"); os.write(m, open("/bin/echo", "rb").read())
if os.fork() == 0: os.execve(m, ["innocent", "eight"], {})
os.wait()
os.posix_spawn("/bin/echo", ["echo", "nine"], {}); os.wait()'
"#;

pub fn execs(scene: &Scene<'_>) -> Result<Seen> {
    let result = scene.run(&[], SCRIPT)?;
    expect(&result, "exit_code", 0)?;
    let run = result["run"].as_str().context("no run")?;
    let journal = scene.env.look(&scene.fixture, &["audit", run, "--json"])?;
    let events: Vec<Value> = journal
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let of = |kind: &str| -> Vec<&Value> {
        let events = events.iter().map(|line| &line["event"]);
        events.filter(|event| event["kind"] == kind).collect()
    };
    let (all, exits) = (of("exec"), of("exit"));
    for word in [
        "one", "two", "three", "four", "six", "eight", "nine", "five", "seven",
    ] {
        let ran = all.iter().filter(|exec| {
            let argv = exec["argv"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            argv.first().is_some_and(|first| first != "env")
                && argv.last().is_some_and(|last| last == word)
        });
        ensure!(ran.count() == 1, "`{word}` is not there once: {all:#?}");
    }
    // One that becomes another has no end of its own.
    let is_replaced = |exec: &Value| all.iter().any(|other| other["replaces"] == exec["exec"]);
    let unended: Vec<&&Value> = all
        .iter()
        .filter(|exec| !exits.iter().any(|exit| exit["exec"] == exec["exec"]))
        .filter(|exec| !is_replaced(exec))
        .collect();
    ensure!(unended.is_empty(), "no end of {unended:?}");
    expect(&result["observed"], "unverified", 0)?;
    expect(&result["evidence"], "complete", true)?;
    scene.same_everywhere("number of programs run", &result["observed"]["execs"])?;
    Ok(Seen::Held)
}

/// Every changed file has its writer, and none is unexplained.
pub fn writes(scene: &Scene<'_>) -> Result<Seen> {
    let shell =
        "echo x > by-shell; python3 -c 'open(\"by-python\", \"w\").write(\"x\")'; cp a.txt by-cp; \
        mv src/main.c moved.c; rm README.md; mkdir -p d/e && echo y > d/e/f; \
        python3 -c 'import mmap, os
f = os.open(\"a.txt\", os.O_RDWR); m = mmap.mmap(f, 4); m[0:3] = b\"ONE\"; m.close()'";
    let result = scene.run(&[], shell)?;
    expect(&result, "exit_code", 0)?;
    let evidence = &result["evidence"];
    expect(evidence, "complete", true)?;
    expect(evidence, "unexplained_count", 0)?;
    let changed = result["changed_files"].as_array().context("no changes")?;
    let files = evidence["files"].as_array().context("no evidence")?;
    for path in changed {
        let file = files.iter().find(|file| file["path"] == *path);
        let is_attributed = file.is_some_and(|file| {
            let writers = file["writers"].as_array();
            writers.is_some_and(|writers| !writers.is_empty()) || !file["last_writer"].is_null()
        });
        ensure!(is_attributed, "nobody wrote {path}: {evidence}");
    }
    scene.same_everywhere("attributed files", &Value::from(files.len()))?;
    Ok(Seen::Held)
}

/// A bundle is whole, and says the same everywhere.
pub fn bundle(scene: &Scene<'_>) -> Result<Seen> {
    let result = scene.run(&[], "echo x > new.txt")?;
    let bundle = result["bundle"].as_str().context("no bundle")?;
    scene.env.look(&scene.fixture, &["verify", bundle])?;
    Ok(Seen::Held)
}

pub fn checks(scene: &Scene<'_>) -> Result<Seen> {
    scene.env.put(&scene.fixture, "value", "1\n")?;
    let lines = ["grep -q 2 value", "grep -q 1 value"];
    let options: Vec<&str> = lines.iter().flat_map(|line| ["--check", line]).collect();
    let result = scene.run(&options, "echo 2 > value")?;
    let reports = result["checks"]["reports"]
        .as_array()
        .context("no reports")?;
    let verdicts: Vec<&str> = lines
        .iter()
        .filter_map(|line| reports.iter().find(|report| report["command"] == *line))
        .filter_map(|report| report["verdict"].as_str())
        .collect();
    let expected = ["fixed", "broke"];
    ensure!(verdicts == expected, "{verdicts:?}");
    Ok(Seen::Held)
}

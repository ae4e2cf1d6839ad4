//! Bounds, each with its own outcome, and what was done before it kept.

use anyhow::{Result, ensure};

use crate::scene::{Scene, Seen};
use crate::support::expect;

/// A bound is met: the outcome says so, the hit is listed, and how firmly it holds is what was claimed.
fn stopped(
    scene: &Scene<'_>,
    option: [&str; 2],
    shell: &str,
    (outcome, limit): (&str, &str),
) -> Result<Seen> {
    let options = match option[0] {
        "--timeout" => option.to_vec(),
        _ => [&option[..], &["--timeout", "60s"]].concat(),
    };
    let result = scene.run(&options, &format!("echo kept > kept.txt; {shell}"))?;
    expect(&result, "outcome", outcome)?;
    expect(&result, "status", "failed")?;
    let hits = result["limit_hits"].as_array();
    let is_listed = hits.is_some_and(|hits| hits.iter().any(|hit| hit[0] == limit));
    ensure!(is_listed, "hits: {}", result["limit_hits"]);
    let changed = result["changed_files"].to_string();
    ensure!(changed.contains("kept.txt"), "lost: {changed}");
    let grades = result["limits"].as_array();
    let grade = grades.and_then(|grades| grades.iter().find(|grade| grade["limit"] == limit));
    let grade = grade.and_then(|grade| grade["grade"].as_str());
    Ok(Seen::As(grade.unwrap_or("of no grade").to_owned()))
}

pub fn memory(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "python3 -c 'import signal
x = bytearray(400 << 20)
for i in range(0, len(x), 4096): x[i] = 1
signal.pause()'";
    let expected = ("out_of_memory", "memory");
    stopped(scene, ["--memory", "100M"], shell, expected)
}

pub fn processes(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "python3 -c 'import os\nwhile True: os.fork()'";
    let expected = ("too_many_processes", "processes");
    stopped(scene, ["--pids", "48"], shell, expected)
}

pub fn disk(scene: &Scene<'_>) -> Result<Seen> {
    let shell =
        "i=0; while :; do i=$((i + 1)); head -c 1048576 /dev/zero | tr '\\0' x > f$i || exit; done";
    stopped(scene, ["--disk", "8M"], shell, ("disk_full", "disk"))
}

pub fn output(scene: &Scene<'_>) -> Result<Seen> {
    let expected = ("output_limit", "output");
    stopped(scene, ["--output", "100K"], "yes", expected)
}

pub fn file_size(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "exec head -c 3145728 /dev/zero > large.bin";
    let expected = ("file_too_large", "file_size");
    stopped(scene, ["--file-size", "1M"], shell, expected)
}

pub fn processor(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "while :; do :; done";
    stopped(scene, ["--cpu-time", "1s"], shell, ("cpu_limit", "cpu"))
}

/// With all that it started, and what was done before kept.
pub fn time(scene: &Scene<'_>) -> Result<Seen> {
    let shell = "(setsid sleep 1000 &); (trap '' TERM; sleep 1000) & sleep 1000";
    stopped(scene, ["--timeout", "1s"], shell, ("timed_out", "time"))
}

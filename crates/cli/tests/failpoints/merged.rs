//! Death at every step of `campaign apply`: a branch is there whole, or not at all.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context, Result, ensure};

use crate::points::{each, moment};
use crate::scene::{call, in_modes_at_once};

#[test]
fn a_branch_of_a_campaign_is_whole_or_absent() -> Result<()> {
    in_modes_at_once("merging", |env, fixture| {
        let mut runs = Vec::new();
        for name in ["one", "two"] {
            let result = env.run_with(fixture, &[], &format!("echo x > {name}"))?;
            let run = result["run"].as_str().context("no run")?.to_owned();
            call(env, fixture, &["approve", &run])?;
            runs.push(run);
        }
        each("merge", |point| {
            let name = point.replace(':', "-");
            let met = fixture.folder.with_file_name("met");
            let _ = fs::remove_file(&met);
            let words = [
                "campaign",
                "apply",
                "--author",
                "Ada L. <ada@example.org>",
                "--runs",
                &runs[0],
                &runs[1],
                "--stacked",
                "--branch",
            ];
            let output = env
                .call(fixture)
                .variable("RINGFENCE_FAIL", point)
                .variable("RINGFENCE_FAIL_MET", &met.to_string_lossy())
                .live(&[&words[..], &[&name]].concat())?
                .finish()?;
            ensure!(output.status.signal() == Some(9), "{}", output.tail());
            ensure!(
                fs::read_to_string(&met).unwrap_or_default() == point,
                "it was not met"
            );
            let pattern = format!("refs/heads/{name}");
            let made = ["for-each-ref", "--format=%(refname)", &pattern];
            let made = env.git(fixture, &fixture.folder, &made)?;
            let expected = usize::from(moment(point) == "named");
            ensure!(made.lines().count() == expected, "{made}");
            // What is there is whole, and nothing is in the way of the next one.
            env.git(fixture, &fixture.folder, &["fsck", "--strict"])?;
            let again = format!("{name}-again");
            call(env, fixture, &[&words[..], &[&again]].concat())?;
            let tip = format!("{again}/0002-{}", runs[1]);
            let names = ["ls-tree", "--name-only", &tip];
            let names = env.git(fixture, &fixture.folder, &names)?;
            ensure!(names.contains("one") && names.contains("two"), "{names}");
            Ok(())
        })
    })
}

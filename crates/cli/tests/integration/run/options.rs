//! The options of `run`, and the streams.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::support::{RUN_SECONDS, expect, in_each_mode, patch, said};

#[test]
fn r64_the_environment_inside_is_exactly_what_was_asked_for() -> Result<()> {
    in_each_mode("environment", |env, fixture| {
        let plain = [
            ("HOME", "/home/agent"),
            ("LANG", "C.UTF-8"),
            ("LOGNAME", "agent"),
            (
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            ),
            ("RINGFENCE", "1"),
            ("RINGFENCE_RESULT", "/home/agent/ringfence-result.json"),
            ("SHELL", "/bin/sh"),
            ("USER", "agent"),
        ];
        let call = env.call(fixture).variable("PASSED", "by name\nwith a line");
        let output = call.finish(&["run", "--", "env", "-0"])?;
        ensure!(
            variables(&output.stdout) == BTreeMap::from(plain),
            "{}",
            output.stdout
        );

        let words = [
            "run",
            "--env",
            "A=1",
            "--env",
            "LANG=C",
            "--env",
            "E=",
            "--env",
            "Q=a=b c",
            "--pass-env",
            "PASSED",
            "--pass-env",
            "NOT_SET_HERE",
            "--",
            "env",
            "-0",
        ];
        let output = call.finish(&words)?;
        let mut expected = BTreeMap::from(plain);
        expected.extend([
            ("A", "1"),
            ("LANG", "C"),
            ("E", ""),
            ("Q", "a=b c"),
            ("PASSED", "by name\nwith a line"),
        ]);
        ensure!(variables(&output.stdout) == expected, "{}", output.stdout);
        ensure!(
            output.stderr.contains("`NOT_SET_HERE`"),
            "no warning: {}",
            output.stderr
        );
        Ok(())
    })
}

fn variables(text: &str) -> BTreeMap<&str, &str> {
    text.split_terminator('\0')
        .map(|variable| variable.split_once('=').unwrap_or((variable, "")))
        .collect()
}

#[test]
fn hidden_paths_are_absent_and_do_not_cross_back() -> Result<()> {
    in_each_mode("hidden", |env, fixture| {
        for name in [".env", "src/.env.local", "src/deep/key.pem"] {
            env.put(fixture, name, "PRIVATE\n")?;
        }
        let hide = [
            "--hide",
            ".env*",
            "--hide",
            "*.pem",
            "--hide",
            "/src/main.c",
        ];
        let result = env.run_with(
            fixture,
            &hide,
            "grep -r PRIVATE .; find . -path ./.git -prune -o -type f -print | sort; \
             echo mine > .env; echo new > new.txt",
        )?;
        ensure!(
            said(&result) == "./.gitignore\n./README.md\n./a.txt\n./src/deep/x.c\n",
            "visible: {}",
            said(&result)
        );
        expect(&result, "changed_files", vec!["new.txt"])?;
        let omitted = &result["omitted"][0];
        expect(omitted, "path", ".env")?;
        expect(omitted, "why", "hidden")?;
        ensure!(!String::from_utf8_lossy(&patch(&result)?).contains(".env"));
        Ok(())
    })
}

#[test]
fn a_policy_about_files_holds_and_is_told() -> Result<()> {
    in_each_mode("files", |env, fixture| {
        let policy = env.put(
            fixture,
            "../policy.toml",
            "[files]\nwrite = ['src/**', 'docs/**']\nexport = ['**/*.c']\n",
        )?;
        // The repository may narrow it, and no more.
        env.put(
            fixture,
            "ringfence.toml",
            "[files]\nread_only = ['src/deep/**']\nwrite = ['**']\nexport = ['**']\n\
             [[files.mount]]\nhost = '/usr'\ninside = '/data'\n",
        )?;
        let policy = policy.display().to_string();
        let attack = "for line in 'echo x >> a.txt' 'chmod 600 a.txt' 'echo x > src/deep/x.c' \
            'echo x > ringfence.toml' 'ls /data' 'mkdir x'; do \
            sh -c \"$line\" 2> /dev/null && echo WORKED $line; done; \
            echo x >> src/main.c; echo n > src/n.txt; echo d > docs/d.md; ls -d docs";
        for options in [
            &["--policy", &policy][..],
            &["--policy", &policy, "--same-path"],
        ] {
            let result = env.run_with(fixture, options, attack)?;
            ensure!(said(&result) == "docs\n", "{}", said(&result));
            expect(&result, "changed_files", vec!["src/main.c"])?;
            ensure!(
                result["omitted"][0]["why"] == "not_exported"
                    && result["omitted"][1]["path"] == "src/n.txt",
                "{}",
                result["omitted"]
            );
            let bundle = result["bundle"].as_str().unwrap_or_default().to_owned();
            env.look(fixture, &["verify", &bundle])?;
            let manifest = std::fs::read_to_string(format!("{bundle}/manifest.json"))?;
            ensure!(manifest.contains("src/deep"), "{manifest}");
        }
        let words = [
            "run",
            "--policy",
            &policy,
            "--",
            "sh",
            "-c",
            "echo n > src/n.txt",
        ];
        let output = env.ringfence(fixture, RUN_SECONDS, &words)?;
        ensure!(
            output
                .stderr
                .contains("src/n.txt (the policy does not export it)"),
            "{}",
            output.stderr
        );
        ensure!(!fixture.folder.join("docs").exists(), "made in the folder");
        env.put(fixture, "../policy.toml", "[files]\nwrite = ['**/*.c']\n")?;
        let output = env.ringfence(fixture, RUN_SECONDS, &words)?;
        ensure!(output.status.code() == Some(2), "{}", output.tail());
        ensure!(output.stderr.contains("`export`"), "{}", output.stderr);
        Ok(())
    })
}

#[test]
fn same_path_keeps_the_path_of_the_folder() -> Result<()> {
    in_each_mode("same-path", |env, fixture| {
        let result = env.run_with(
            fixture,
            &["--same-path"],
            "pwd; git rev-parse --show-toplevel; test -e /workspace || echo none; echo x >> a.txt",
        )?;
        let folder = fixture.folder.display();
        ensure!(
            said(&result) == format!("{folder}\n{folder}\nnone\n"),
            "{}",
            said(&result)
        );
        expect(&result, "changed_files", vec!["a.txt"])
    })
}

#[test]
fn a_name_finds_the_run_again() -> Result<()> {
    in_each_mode("named", |env, fixture| {
        let result = env.run_with(
            fixture,
            &["--name", "first-try"],
            "echo x > new.txt; echo hi",
        )?;
        expect(&result, "name", "first-try")?;
        let run = result["run"].as_str().context("no run")?;
        ensure!(env.look(fixture, &["list"])?.contains("[first-try]"));
        let by_name = env.look(fixture, &["diff", "first-try"])?;
        for word in [run, &run[..6], "last"] {
            ensure!(
                env.look(fixture, &["diff", word])? == by_name,
                "`{word}` differs"
            );
        }
        ensure!(by_name.as_bytes() == patch(&result)?);
        ensure!(env.look(fixture, &["logs", "first-try"])? == "hi\n");
        let words = ["run", "--name", "first-try", "--", "true"];
        let again = env.call(fixture).finish(&words)?;
        again.exits(2)?;
        ensure!(again.stderr.contains("`first-try`"), "{}", again.tail());
        env.look(fixture, &["rm", "first-try"])?;
        env.call(fixture).finish(&words)?.exits(0)
    })
}

#[test]
fn shell_takes_a_line_or_reads_its_input() -> Result<()> {
    in_each_mode("shell", |env, fixture| {
        let line = ["run", "--shell", "--", "echo $((1 + 2)) | cat;", "pwd"];
        let output = env.call(fixture).finish(&line)?;
        ensure!(output.stdout == "3\n/workspace\n", "{}", output.tail());
        let call = env.call(fixture).input(b"x=4\necho $x $0\nexit 6\n");
        let output = call.finish(&["run", "--shell", "--pass-exit-code"])?;
        output.exits(6)?;
        ensure!(output.stdout.starts_with("4 /bin/"), "{}", output.tail());
        Ok(())
    })
}

#[test]
fn json_is_one_object_with_the_promised_fields() -> Result<()> {
    in_each_mode("json", |env, fixture| {
        let words = [
            "run",
            "--json",
            "--",
            "sh",
            "-c",
            "echo o; echo e >&2; echo x > new.txt",
        ];
        let output = env.call(fixture).finish(&words)?;
        output.exits(0)?;
        ensure!(output.stdout.lines().count() == 1, "{}", output.stdout);
        let result: Value = serde_json::from_str(&output.stdout)?;
        ensure!(result["run"].is_string());
        ensure!(
            result["patch"]
                .as_str()
                .is_some_and(|path| path.starts_with('/'))
        );
        ensure!(result["duration_ms"].is_u64());
        expect(&result, "status", "done")?;
        expect(&result, "outcome", "exited")?;
        expect(&result, "exit_code", 0)?;
        expect(&result, "changed_files", vec!["new.txt"])?;
        let shown: Value = serde_json::from_str(&env.look(fixture, &["show", "--json"])?)?;
        ensure!(shown == result, "`show` differs: {shown}");
        let row = &env.runs(fixture, &[])?[0];
        for field in ["run", "status", "outcome", "exit_code", "duration_ms"] {
            expect(row, field, result[field].clone())?;
        }
        expect(row, "changed_files", 1)?;

        let words = ["run", "--json", "--", "sh", "-c", "kill -15 $$"];
        let killed = env.call(fixture).finish(&words)?;
        killed.exits(1)?;
        let result = killed.json.context("no result")?;
        expect(&result, "status", "failed")?;
        expect(&result, "outcome", "signaled")?;
        expect(&result, "exit_code", Value::Null)?;
        expect(&result, "signal", 15)?;
        expect(&result, "changed_files", Vec::<String>::new())
    })
}

#[test]
fn the_exit_code_is_passed_where_it_is_asked_for() -> Result<()> {
    in_each_mode("exit-code", |env, fixture| {
        for (shell, plain, passed) in [
            ("exit 0", 0, 0),
            ("exit 7", 1, 7),
            ("exit 255", 1, 255),
            ("kill -15 $$", 1, 143),
        ] {
            let call = env.call(fixture);
            call.finish(&["run", "--", "sh", "-c", shell])?
                .exits(plain)?;
            let words = ["run", "--pass-exit-code", "--", "sh", "-c", shell];
            call.finish(&words)?.exits(passed)?;
        }
        Ok(())
    })
}

#[test]
fn input_reaches_the_command_and_ends() -> Result<()> {
    in_each_mode("input", |env, fixture| {
        let input: Vec<u8> = (0..3_000_000u32).map(|n| b'a' + (n % 23) as u8).collect();
        let call = env.call(fixture).input(&input);
        let output = call.finish(&["run", "--", "cat"])?;
        ensure!(
            output.stdout.as_bytes() == input,
            "{} bytes",
            output.stdout.len()
        );
        // A command that does not read does not hold the run.
        call.finish(&["run", "--", "true"])?.exits(0)?;
        let empty = env.call(fixture).finish(&["run", "--", "cat"])?;
        empty.exits(0)?;
        ensure!(empty.stdout.is_empty());
        Ok(())
    })
}

#[test]
fn the_two_streams_are_never_merged_or_cut() -> Result<()> {
    in_each_mode("streams", |env, fixture| {
        // 5 MiB on each, written at the same time, without a line's end at the end.
        let shell = "(yes out | head -c 5242880; printf O) & (yes err | head -c 5242880; printf E) >&2; wait";
        let output = env
            .call(fixture)
            .finish(&["run", "--", "sh", "-c", shell])?;
        output.exits(0)?;
        let whole = |word: &str, last: &str| {
            let mut text = word.repeat(5_242_880 / word.len());
            text.push_str(last);
            text
        };
        let (out, err) = (whole("out\n", "O"), whole("err\n", "E"));
        ensure!(output.stdout == out, "standard output differs");
        ensure!(output.stderr.starts_with(&err), "standard error differs");
        ensure!(!output.stderr.contains("out\n"));
        let logs = env.ringfence(fixture, 20, &["logs"])?;
        ensure!(logs.stdout == out && logs.stderr == err, "the logs differ");
        ensure!(env.look(fixture, &["logs", "--stdout"])? == out);
        ensure!(env.look(fixture, &["logs", "--stderr"])?.is_empty());
        let shown: Value = serde_json::from_str(&env.look(fixture, &["show", "--json"])?)?;
        for stream in ["stdout", "stderr"] {
            expect(&shown[stream], "bytes", 5_242_881)?;
            expect(&shown[stream], "truncated", true)?;
        }
        Ok(())
    })
}

/// R79: what a start costs is in every result; how it compares is the bench's to say.
#[test]
fn r79_every_result_says_what_it_took() -> Result<()> {
    in_each_mode("took", |env, fixture| {
        let result = env.run_with(fixture, &[], "sleep 0.05")?;
        let of = |key: &str| result[key].as_u64().with_context(|| format!("no `{key}`"));
        ensure!(of("duration_ms")? >= 50, "{result}");
        ensure!(of("total_ms")? >= of("duration_ms")?, "{result}");
        Ok(())
    })
}

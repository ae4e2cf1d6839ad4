//! What is typed wrong: each mistake has a message, a way out, and the exit code of the caller's
//! own mistake.

use anyhow::{Result, ensure};

use crate::sandbox::kit::{lasting, path};

#[test]
fn wrong_words_are_told_with_what_is_wrong() -> Result<()> {
    lasting("wrong", |kit| {
        let folder = path(&kit.fixture.folder).to_owned();
        let id = kit.create(&["--name", "taken"])?;
        kit.done(&["sandbox", "checkpoint", &id, "--name", "one"])?;
        let create = ["sandbox", "create", "--repo", &folder];
        let with = |words: &[&'static str]| -> Vec<String> {
            create
                .iter()
                .copied()
                .chain(words.iter().copied())
                .map(str::to_owned)
                .collect()
        };
        let typed = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        for (words, says, hints) in [
            (
                typed(&["sandbox", "exec", "nosuch", "--", "true"]),
                "nosuch",
                true,
            ),
            (typed(&["sandbox", "rm", "nosuch"]), "nosuch", true),
            (typed(&["sandbox", "diff", "nosuch"]), "nosuch", true),
            (with(&["--base", "nosuch"]), "nosuch", true),
            (
                with(&["--base", "main", "--files", "a.txt"]),
                "--stage needed",
                false,
            ),
            (
                with(&["--base", "main", "--stage", "needed"]),
                "--files",
                false,
            ),
            (with(&["--base", "main", "--name", "taken"]), "taken", false),
            (with(&["--memory", "1"]), "16M", true),
            (with(&["--ttl", "soon"]), "soon", false),
            (with(&["--env", "=x"]), "=x", false),
            (
                typed(&["sandbox", "create", "--repo", "/no/such/folder"]),
                "/no/such/folder",
                true,
            ),
            (
                typed(&["sandbox", "create", "--repo", "ftp://example.org/x"]),
                "ftp",
                true,
            ),
            (typed(&["sandbox", "create", "--repo", ""]), "", true),
            (
                typed(&["sandbox", "create", "--empty", "--base", "main"]),
                "--empty",
                false,
            ),
            (
                typed(&["sandbox", "checkpoint", &id, "--name", "one"]),
                "one",
                true,
            ),
            (
                typed(&["sandbox", "checkpoint", &id, "--name", "../x"]),
                "../x",
                false,
            ),
            (
                typed(&["sandbox", "checkpoint", &id, "--name", ""]),
                "name of a checkpoint",
                false,
            ),
            (typed(&["sandbox", "rollback", &id, "two"]), "two", true),
            (typed(&["sandbox", "fork", &id, "--count", "0"]), "0", false),
            (
                typed(&["sandbox", "fork", &id, "--count", "1000000"]),
                "1000000",
                false,
            ),
            (
                typed(&["sandbox", "fork", &id, "--from", "two"]),
                "two",
                true,
            ),
            (typed(&["sandbox", "exec", &id]), "nothing to run", true),
            (
                typed(&["sandbox", "exec", &id, "--", ""]),
                "nothing to run",
                true,
            ),
            (
                typed(&[
                    "sandbox",
                    "exec",
                    &id,
                    "--shared",
                    "--no-wait",
                    "--",
                    "true",
                ]),
                "--no-wait",
                false,
            ),
            (
                typed(&["sandbox", "fs", "read", &id, "a.txt", "--lines", "x"]),
                "x",
                false,
            ),
            (typed(&["sandbox", "pin", &id, "two"]), "two", true),
            (typed(&["sandbox", "stop"]), "SANDBOX", false),
        ] {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let said = kit.fails(2, says, &words)?;
            ensure!(said.contains("error:"), "{words:?}: {said}");
            ensure!(
                !hints || said.contains("hint:"),
                "{words:?} without a hint: {said}"
            );
        }
        ensure!(kit.states()? == ["ready"], "something was made or started");
        // What is typed is never a path or a pattern of ours.
        kit.fails(2, "", &["sandbox", "rm", "../../etc"])?;
        kit.fails(2, "", &["sandbox", "rm", "%"])?;
        kit.done(&["sandbox", "exec", "taken", "--", "true"])?;
        kit.done(&["sandbox", "exec", &id[..6], "--", "true"])?;
        kit.done(&["sandbox", "stop", "last"])?;
        Ok(())
    })
}

#[test]
fn what_is_not_understood_in_the_settings_is_told() -> Result<()> {
    lasting("settings", |kit| {
        kit.create(&[])?;
        let config = kit.state_path("config.toml");
        for (text, says) in [
            ("[gc]\nages = \"1d\"\n", "ages"),
            ("[gc]\nage = \"soon\"\n", "soon"),
            ("]", "config.toml"),
        ] {
            std::fs::write(&config, text)?;
            kit.fails(2, says, &["gc", "--dry-run"])?;
        }
        std::fs::remove_file(config)?;
        Ok(())
    })
}

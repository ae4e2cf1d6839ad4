//! Who made each change, as `blame` tells it from a bundle; and nothing that changed goes
//! without an observed write.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::support::{Fixture, Sandboxed, expect, in_each_mode};

/// A text of so many lines, put into the folder.
fn lines(env: &Sandboxed, fixture: &Fixture, name: &str, count: u32) -> Result<()> {
    let text: String = (1..=count).map(|n| format!("line {n}\n")).collect();
    env.put(fixture, name, text).map(|_| ())
}

/// What `blame --json` says of the last run.
fn blame(env: &Sandboxed, fixture: &Fixture, path: &str) -> Result<Value> {
    let said = env.look(fixture, &["blame", "last", path, "--json"])?;
    serde_json::from_str(&said).context("blame prints one JSON object")
}

/// The first word of the command of an exec.
fn program<'a>(blame: &'a Value, exec: &Value) -> &'a str {
    blame["execs"][exec.to_string()]["argv"][0]
        .as_str()
        .unwrap_or("?")
}

/// Who made each hunk of a path: programs, joined by `+`, with a question mark where untold.
fn makers(env: &Sandboxed, fixture: &Fixture, path: &str) -> Result<Vec<String>> {
    let blame = blame(env, fixture, path)?;
    let mut makers = Vec::new();
    for file in blame["files"].as_array().context("files")? {
        for hunk in file["hunks"].as_array().context("hunks")? {
            let by = hunk["by"].as_array().context("by")?;
            let names: Vec<&str> = by.iter().map(|exec| program(&blame, exec)).collect();
            let told = if hunk["told"] == true { "" } else { "?" };
            makers.push(names.join("+") + told);
        }
    }
    Ok(makers)
}

fn complete(result: &Value) -> Result<()> {
    let evidence = &result["evidence"];
    ensure!(
        evidence["complete"] == true,
        "unexplained: {}",
        evidence["unexplained"]
    );
    Ok(())
}

#[test]
fn each_hunk_is_of_who_made_it() -> Result<()> {
    in_each_mode("hunks", |env, fixture| {
        lines(env, fixture, "text", 60)?;
        lines(env, fixture, "gone", 3)?;
        let work = "sed -i 's/^line 2$/two/' text; \
            python3 -c \"s=open('text').read(); open('text','w').write(s.replace('line 30','thirty'))\"; \
            awk '{ print } END { print \"last\" }' text > /tmp/t; cp /tmp/t text; \
            rm gone; chmod 755 a.txt; ln -s text link; mv README.md READ.md";
        let result = env.run_with(fixture, &[], work)?;
        expect(&result, "status", "done")?;
        complete(&result)?;
        let found = makers(env, fixture, "text")?;
        ensure!(found == ["sed", "python3", "cp"], "{found:?}");
        ensure!(makers(env, fixture, "gone")? == ["rm"]);
        ensure!(makers(env, fixture, "link")? == ["ln"]);
        for (path, expected) in [("a.txt", "chmod"), ("READ.md", "mv"), ("README.md", "mv")] {
            let blame = blame(env, fixture, path)?;
            let file = &blame["files"][0];
            let last = program(&blame, &file["last_writer"]);
            ensure!(last == expected, "{path}: {last}");
            ensure!(file["hunks"] == Value::Array(Vec::new()), "{path}: {file}");
        }
        let parents = blame(env, fixture, "text")?;
        let sed = &parents["files"][0]["hunks"][0]["by"][0];
        let above = &parents["execs"][sed.to_string()]["parents"];
        ensure!(*above == serde_json::json!([1]), "{parents}");
        Ok(())
    })
}

#[test]
fn a_page_shows_hunks_and_under_them_who_made_them() -> Result<()> {
    in_each_mode("page", |env, fixture| {
        lines(env, fixture, "text", 30)?;
        let work = "make -s -f - <<'END'\nall:\n\t@sed -i 's/^line 2$$/\\x1b]0;two/' text\nEND\n\
            rm a.txt; echo > '\u{202e}odd'";
        let result = env.run_with(fixture, &[], work)?;
        complete(&result)?;
        let page = env.look(fixture, &["blame", "last", "text"])?;
        for part in [
            "M text\n@@ -1,5 +1,5 @@\n line 1\n-line 2\n+\\u{1b}]0;two\n",
            "\n└ by ",
            ": sed -i ",
            " text\n     /usr/bin/sed\n     began ",
            ", exited with 0 after ",
            " ▸ make -s -f - ▸ sed -i ",
        ] {
            ensure!(page.contains(part), "no {part:?} in {page}");
        }
        let page = env.look(fixture, &["blame", "last", "a.txt"])?;
        ensure!(page.contains("\n└ removed by "), "{page}");
        let list = env.look(fixture, &["blame"])?;
        let of = |path: &str| list.lines().find(|line| line.ends_with(path));
        ensure!(of("  text").is_some_and(|line| line.starts_with("M        1  ")));
        ensure!(of("  a.txt").is_some_and(|line| line.contains(" rm a.txt ")));
        ensure!(of("\\u{202e}odd").is_some(), "{list}");
        ensure!(!list.contains("incomplete"), "{list}");
        Ok(())
    })
}

#[test]
fn a_path_is_found_as_a_person_types_it() -> Result<()> {
    in_each_mode("typed", |env, fixture| {
        let src = fixture.folder.join("src");
        let call = env.call(fixture).folder(&src);
        let work = "echo >> main.c; echo >> deep/x.c; mkdir ignored; echo > ignored/y; echo > n";
        let result = call.run(&[], work)?;
        expect(
            &result,
            "changed_files",
            vec!["src/deep/x.c", "src/main.c", "src/n"],
        )?;
        complete(&result)?;
        let top = fixture.folder.to_str().context("a path of text")?;
        let bundle = result["bundle"].as_str().context("a bundle")?;
        let count = |folder: &std::path::Path, words: &[&str]| -> Result<usize> {
            let mut all = vec!["blame"];
            all.extend(words);
            let output = env.call(fixture).folder(folder).finish(&all)?;
            output.exits(0)?;
            let is_head = |line: &&str| line.starts_with("M ") || line.starts_with("A ");
            Ok(output.stdout.lines().filter(is_head).count())
        };
        let absolute = format!("{top}/src/main.c");
        for (folder, path, files) in [
            (&src, "main.c", 1),
            (&src, "./deep/../main.c", 1),
            (&src, "src/main.c", 1),
            (&src, ".", 3),
            (&src, "deep/", 1),
            (&fixture.folder, "src/main.c", 1),
            (&fixture.folder, "main.c", 1),
            (&fixture.folder, &absolute, 1),
            (&fixture.folder, "/workspace/main.c", 1),
        ] {
            let found = count(folder, &["last", path])?;
            ensure!(found == files, "{path} in {folder:?}: {found}");
        }
        ensure!(count(&fixture.state, &[bundle, "main.c"])? == 1);
        for (words, parts) in [
            (
                &["last", "mian.c"][..],
                &["`mian.c` was not changed", "src/main.c"][..],
            ),
            (
                &["last", "elsewhere"],
                &["was not changed", "without a path"],
            ),
            (&["last", "ignored/y"], &["stayed behind: ignored"]),
            (&["main.c"], &["no run", "ringfence blame last"]),
            (&["src/main.c"], &["no run", "ringfence blame last"]),
            (&["no-such-run"], &["no run `no-such-run`"]),
        ] {
            let mut all = vec!["blame"];
            all.extend(words);
            let output = call.finish(&all)?;
            output.exits(2)?;
            for part in parts {
                ensure!(output.stderr.contains(part), "{words:?}: {}", output.stderr);
            }
        }
        Ok(())
    })
}

/// Everyday tools, and each way to change a file: all that changed is explained.
#[test]
fn everything_that_changed_is_explained() -> Result<()> {
    in_each_mode("explained", |env, fixture| {
        lines(env, fixture, "text", 40)?;
        for work in [
            "git config user.name a; git config user.email a@b; git checkout -qb t; echo x >> a.txt; \
             git commit -qam x; git checkout -q main; echo y >> src/main.c; git commit -qam y; \
             git rebase -q t; echo z >> a.txt; git stash -q; git stash pop -q; git mv a.txt b.txt; git rm -q src/deep/x.c",
            "mv src s2; mkdir n; mv s2 n/; mv n m; mv m/s2 s3; cp -al s3 s4; echo x >> s4/main.c",
            "tar cf /tmp/t.tar src; rm -r src; mkdir x; tar xf /tmp/t.tar -C x; tar xf /tmp/t.tar; echo x >> src/main.c",
            "diff -u text /dev/fd/3 3<<E | patch -s text\n$(sed s/4/vier/ text)\nE\ntrue",
            "ln -s src way; echo x > way/new; ln -s way far; cd far/deep; echo y > ../other; rm x.c",
            "rm a.txt; mkdir a.txt; echo x > a.txt/in; mkdir -m 700 p; echo x > p/f; umask 077; echo > q; chmod 0 q",
            "exec 3>>a.txt; sh -c 'echo x >&3'; exec 4<text; python3 -c \"open('/proc/self/fd/4','a').write('y')\"; chmod 755 /proc/self/fd/4",
            "python3 - <<'E'\nimport ctypes, mmap, os\nc = ctypes.CDLL(None)\n\
             t = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o644); os.write(t, b'x')\n\
             c.linkat(-100, b'/proc/self/fd/%d' % t, -100, b'named', 0x400)\n\
             f = os.open('text', os.O_RDWR); m = mmap.mmap(f, 0); m[0:4] = b'LINE'; m.close()\n\
             os.truncate('src/main.c', 3); os.mknod('node', 0o644)\n\
             c.renameat2(-100, b'a.txt', -100, b'src/deep/x.c', 2)\nE",
            "for i in $(seq 30); do (echo $i > r; mv r r2; echo $i >> r2; mkdir -p q; echo $i > q/f; \
             mv q q$i; rm -rf q) 2>/dev/null & done; wait",
        ] {
            let result = env.run_with(fixture, &[], work)?;
            let count = result["changes"].as_array().map_or(0, Vec::len);
            ensure!(count > 0, "`{work}` changed nothing: {}", result["stderr"]);
            complete(&result).with_context(|| work.to_owned())?;
            for file in result["evidence"]["files"].as_array().context("files")? {
                ensure!(file["last_writer"].is_u64(), "`{work}`: {file}");
            }
        }
        Ok(())
    })
}

/// The bundle of a run, for somebody to change.
fn copy(env: &Sandboxed, fixture: &Fixture, result: &Value) -> Result<PathBuf> {
    let bundle = result["bundle"].as_str().context("a bundle")?;
    let copy = fixture.state.join("copy");
    let copied = copy.to_str().context("a path of text")?;
    env.as_owner(fixture, &fixture.folder, &["cp", "-r", bundle, copied])?;
    env.as_owner(fixture, &fixture.folder, &["chmod", "-R", "u+rwX", copied])?;
    Ok(copy)
}

/// A bundle that was changed by somebody is told of, not believed and not fallen over.
#[test]
fn a_bundle_that_does_not_fit_is_told() -> Result<()> {
    in_each_mode("unfit", |env, fixture| {
        let result = env.run_with(fixture, &[], "echo x >> a.txt")?;
        for (name, text, part) in [
            (
                "changes.patch",
                "diff --git a/a b/a\n@@ -1 +1 @@\nx\n",
                "no patch",
            ),
            ("changes.patch", "", "not the one of its result"),
            ("audit.jsonl", "{}\n", "journal"),
            ("result.json", "{}", "result.json"),
        ] {
            let copy = copy(env, fixture, &result)?;
            let copied = copy.to_str().context("a path of text")?;
            fs::write(copy.join(name), text)?;
            let output = env.call(fixture).finish(&["blame", copied, "a.txt"])?;
            ensure!(!output.status.success(), "{name}: {}", output.stdout);
            ensure!(output.stderr.contains(part), "{name}: {}", output.stderr);
            ensure!(!output.stderr.contains("panicked"), "{}", output.stderr);
            env.as_owner(fixture, &fixture.folder, &["rm", "-rf", copied])?;
        }
        Ok(())
    })
}

/// Whoever made a bundle chose its words: none of them is more than text on a terminal.
#[test]
fn the_name_of_a_run_in_a_bundle_is_only_text() -> Result<()> {
    in_each_mode("forged", |env, fixture| {
        let result = env.run_with(fixture, &[], "echo x >> a.txt")?;
        let copy = copy(env, fixture, &result)?;
        let copied = copy.to_str().context("a path of text")?;
        let name = copy.join("result.json");
        let text = fs::read_to_string(&name)?;
        let mut forged: Value = serde_json::from_str(&text)?;
        forged["run"] = "0f\nforged: all is well\u{1b}[2J\u{202e}".into();
        fs::write(&name, serde_json::to_string(&forged)?)?;
        for words in [
            &["blame", copied][..],
            &["blame", copied, "a.txt"],
            &["blame", copied, "nothing"],
        ] {
            let output = env.call(fixture).finish(words)?;
            let said = format!("{}{}", output.stdout, output.stderr);
            ensure!(!said.contains("panicked"), "{said}");
            let bad = said
                .chars()
                .find(|&c| ringfence_model::text::misleads(c) && c != '\n');
            ensure!(bad.is_none(), "{words:?}: {bad:?}");
            let begins = said.lines().find(|line| line.starts_with("forged"));
            ensure!(begins.is_none(), "{words:?}: {said}");
        }
        Ok(())
    })
}

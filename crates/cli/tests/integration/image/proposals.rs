//! Images that a folder's own `ringfence.toml` names: used if they are here, else only from registries
//! that the user names. Nothing is connected to before that is known.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::image::made::usual;
use crate::image::reach::Untouched;
use crate::image::server::{Reply, Server};
use crate::image::{call, nothing_is_left, says};
use crate::support::in_each_mode;

fn names(image: &str) -> String {
    format!("[environment]\nimage = '{image}'\n")
}

#[test]
fn a_registry_that_only_a_folder_names_is_not_connected_to() -> Result<()> {
    in_each_mode("proposed", |env, fixture| {
        let call = call(env, fixture);
        let inner = Untouched::at("127.0.0.1")?;
        let port = inner.port();
        let near = format!(
            "[images]\nregistries = ['127.0.0.1:{}', 'localhost']\n",
            port ^ 1
        );
        let policy = env.put(fixture, "../near.toml", near)?;
        let policy = policy.to_string_lossy();
        let named = format!("[images]\nregistries = ['127.0.0.1:{port}']\n");
        for (proposal, registry) in [
            (names(&format!("127.0.0.1:{port}/team/app")), "127.0.0.1"),
            (names(&format!("localhost:{port}/team/app:1")), "localhost"),
            (names(&format!("LOCALHOST:{port}/team/app:1")), "localhost"),
            (names("beacon.example/id-4711"), "beacon.example"),
            (names("169.254.169.254/latest/meta-data"), "169.254.169.254"),
            // A folder names no registry for itself.
            (
                named + &names(&format!("127.0.0.1:{port}/team/app")),
                "127.0.0.1",
            ),
        ] {
            env.put(fixture, "ringfence.toml", &proposal)?;
            for words in [
                &["run", "--", "true"][..],
                &["run", "--policy", &policy, "--", "true"],
                &["sandbox", "create"],
            ] {
                let output = call.finish(words)?;
                output.exits(3)?;
                for part in [registry, "ringfence.toml:", "--image", "[images]"] {
                    ensure!(output.stderr.contains(part), "{part}: {}", output.stderr);
                }
                inner.check(&proposal)?;
            }
        }
        std::fs::remove_file(fixture.folder.join("ringfence.toml"))?;
        nothing_is_left(&call, fixture)
    })
}

#[test]
fn a_digest_that_is_not_here_is_asked_of_nobody() -> Result<()> {
    in_each_mode("digest", |env, fixture| {
        let call = call(env, fixture);
        let proposal = names(&format!("sha256:{}", "0".repeat(64)));
        let named = env.put(
            fixture,
            "../p.toml",
            "[images]\nregistries = ['docker.io']\n",
        )?;
        env.put(fixture, "ringfence.toml", proposal)?;
        let output = call.finish(&["run", "--policy", &named.to_string_lossy(), "--", "true"])?;
        output.exits(2)?;
        ensure!(
            output.stderr.contains("there is no image"),
            "{}",
            output.stderr
        );
        Ok(())
    })
}

#[test]
fn a_proposed_image_is_used_where_it_is_here_or_its_registry_is_named() -> Result<()> {
    in_each_mode("named", |env, fixture| {
        let call = call(env, fixture);
        let docker = fixture.state.with_file_name("docker");
        std::fs::create_dir_all(&docker)?;
        for how in ["here", "policy", "typed"] {
            let registry = Server::start(&usual(), |_, _| None);
            let reference = registry.reference();
            let host = format!("127.0.0.1:{}", registry.port);
            let entry = json!({ "auths": { &host: { "username": "me", "password": "a word" } } });
            std::fs::write(docker.join("config.json"), entry.to_string())?;
            env.put(fixture, "ringfence.toml", names(&reference))?;
            let named = format!("[images]\nregistries = ['{host}']\n");
            let policy = env.put(fixture, "../named.toml", named)?;
            let policy = policy.to_string_lossy();
            let options: &[&str] = match how {
                "policy" => &["--policy", &policy],
                "typed" => &["--image", &reference],
                _ => &[],
            };
            if how == "here" {
                says(&call, &["pull", &reference], 0)?;
            }
            let before = registry.asked().len();
            // The image has no program; that it is the root is what counts.
            let output = call.finish(&[&["run"], options, &["--", "/no-program"]].concat())?;
            let code = output.status.code();
            ensure!(!matches!(code, Some(3 | 4 | 70)), "{how}: {output:?}");
            let after = registry.asked().len();
            ensure!(
                (after > before) == (how != "here"),
                "{how}: {before} {after}"
            );
            ensure!(says(&call, &["list"], 0)?.stdout.contains(&host), "{how}");
        }
        Ok(())
    })
}

#[test]
fn a_realm_is_asked_where_the_users_own_policy_names_it() -> Result<()> {
    in_each_mode("realm", |env, fixture| {
        let call = call(env, fixture);
        let giver = Server::start(&usual(), |_, _| {
            Some(Reply::new(200, r#"{"token":"T0K3N"}"#))
        });
        let realm = format!("Bearer realm=\"http://127.0.0.1:{}/token\"", giver.port);
        let registry = Server::start(&usual(), move |asked, _| {
            let known = asked.header("authorization") == "Bearer T0K3N";
            (!known).then(|| Reply::new(401, "").with("www-authenticate", realm.as_str()))
        });
        let words = ["pull", &registry.reference()];
        let output = says(&call, &words, 3)?;
        ensure!(
            output.stderr.contains("[images] registries"),
            "{}",
            output.stderr
        );
        ensure!(giver.asked().is_empty(), "{:?}", giver.asked());
        let named = format!("[images]\nregistries = ['127.0.0.1:{}']\n", giver.port);
        let own = env.put(fixture, "../own.toml", named)?;
        std::fs::copy(own, fixture.state.join("policy.toml"))?;
        says(&call, &words, 0)?;
        Ok(())
    })
}

#[test]
fn a_row_names_no_private_server_to_clone_from() -> Result<()> {
    in_each_mode("rows", |env, fixture| {
        let inner = Untouched::at("127.0.0.1")?;
        let port = inner.port();
        let repos = [
            format!("http://127.0.0.1:{port}/a"),
            format!("https://localhost:{port}/a"),
            format!("git://127.0.0.1:{port}/a"),
            format!("ssh://git@127.0.0.1:{port}/a"),
            format!("http://127.1:{port}/a"),
            "http://169.254.169.254/a".to_owned(),
        ];
        let row = |(number, repo): (usize, &String)| {
            let id = number.to_string();
            let row =
                json!({ "id": id, "repo": repo, "commit": "main", "prompt": "x", "check": "true" });
            format!("{row}\n")
        };
        let rows: String = repos.iter().enumerate().map(row).collect();
        env.put(fixture, "rows.jsonl", rows)?;
        let words = ["eval", "rows.jsonl", "--out", "out.jsonl", "--", "true"];
        let output = env.ringfence(fixture, 240, &words)?;
        let results = std::fs::read_to_string(fixture.folder.join("out.jsonl"))?;
        ensure!(results.lines().count() == repos.len(), "{output:?}");
        for result in results.lines() {
            let result: serde_json::Value = serde_json::from_str(result)?;
            ensure!(result["error"]["kind"] == "denied", "{result}");
        }
        inner.check("a repository of a row")
    })
}

#[test]
fn a_row_names_no_registry() -> Result<()> {
    in_each_mode("row", |env, fixture| {
        let inner = Untouched::at("127.0.0.1")?;
        let row = json!({
            "id": "a",
            "repo": ".",
            "commit": "HEAD",
            "prompt": "x",
            "check": "true",
            "image": format!("127.0.0.1:{}/team/app", inner.port()),
        });
        env.put(fixture, "rows.jsonl", format!("{row}\n"))?;
        let words = [
            "eval",
            "rows.jsonl",
            "--out",
            "out.jsonl",
            "--row-images",
            "--",
            "true",
        ];
        let output = env.ringfence(fixture, 240, &words)?;
        let results = std::fs::read_to_string(fixture.folder.join("out.jsonl"))?;
        let result: serde_json::Value = serde_json::from_str(&results)?;
        ensure!(result["error"]["kind"] == "denied", "{output:?} {result}");
        inner.check("an image of a row")
    })
}

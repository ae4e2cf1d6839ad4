//! Registries that misbehave: each fault has its message, and nothing is left behind.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use crate::image::made::{self, Made, digest, index, tar, usual};
use crate::image::server::{Asked, Reply, Server, ranged};
use crate::image::{call, nothing_is_left, says, shelf};
use crate::support::in_each_mode;

/// How a registry misbehaves, and what is said about it.
type Fault = (
    &'static str,
    Made,
    Box<dyn Fn(&Asked, usize) -> Option<Reply> + Send + Sync>,
    i32,
    &'static str,
);

fn fault(
    name: &'static str,
    image: Made,
    code: i32,
    said: &'static str,
    behaviour: impl Fn(&Asked, usize) -> Option<Reply> + Send + Sync + 'static,
) -> Fault {
    (name, image, Box::new(behaviour), code, said)
}

fn faults() -> Vec<Fault> {
    let image = usual();
    let big = digest(&image.blobs[0]);
    let mut bent = image.blobs[0].clone();
    bent[100] ^= 1;
    let mut longer = image.blobs[0].clone();
    longer.push(0);
    let is_big = move |asked: &Asked| asked.path.ends_with(&big);
    let (is_bent, is_longer, is_half) = (is_big.clone(), is_big.clone(), is_big);
    let half = image.blobs[0].clone();
    let elsewhere = made::image_for(&image.tars, "pdp11");
    let for_others = index(&image.manifest, &["pdp11", "vax"]);
    let mut other_diff = image.clone();
    other_diff.config = String::from_utf8_lossy(&image.config)
        .replace(&digest(&image.tars[1]), &digest(b"other"))
        .into_bytes();
    let manifest = made::manifest(&other_diff.config, &image.blobs);
    other_diff.manifest = manifest.to_string().into_bytes();
    let climbing = made::image(&[tar(&[("a", b""), ("../../outside", b"x")])]);
    vec![
        fault(
            "401",
            image.clone(),
            3,
            "wants to know who asks",
            |asked, _| {
                let basic = Reply::new(401, "").with("www-authenticate", "Basic realm=x");
                asked.is_manifest().then_some(basic)
            },
        ),
        fault(
            "403",
            image.clone(),
            3,
            "does not let this user",
            |asked, _| asked.is_manifest().then(|| Reply::new(403, "")),
        ),
        fault(
            "404",
            image.clone(),
            2,
            "has no `team/app/manifests/1`",
            |asked, _| asked.is_manifest().then(|| Reply::new(404, "{}")),
        ),
        fault(
            "429",
            image.clone(),
            4,
            "wants 3600 s of rest",
            |asked, _| {
                let slow = Reply::new(429, "").with("retry-after", "3600");
                asked.is_manifest().then_some(slow)
            },
        ),
        fault("500", image.clone(), 4, "answered 500", |asked, _| {
            asked.is_manifest().then(|| Reply::new(500, ""))
        }),
        fault(
            "half a blob",
            image.clone(),
            4,
            "broke off",
            move |asked, _| {
                let cut = Reply::new(200, half.clone()).cut(half.len() / 2);
                is_half(asked).then_some(cut)
            },
        ),
        fault(
            "wrong digest",
            image.clone(),
            2,
            "is not what its digest says",
            move |asked, _| is_bent(asked).then(|| Reply::new(200, bent.clone())),
        ),
        fault(
            "too long",
            image.clone(),
            2,
            "and should have",
            move |asked, _| is_longer(asked).then(|| Reply::new(200, longer.clone())),
        ),
        fault(
            "wrong manifest",
            image.clone(),
            2,
            "cannot be understood",
            |asked, _| {
                asked
                    .is_manifest()
                    .then(|| Reply::new(200, "{\"schemaVersion\":1}"))
            },
        ),
        fault(
            "wrong machine",
            elsewhere,
            2,
            "but for linux/pdp11",
            |_, _| None,
        ),
        fault(
            "index of others",
            image,
            2,
            "but for linux/pdp11, linux/vax",
            move |asked, _| {
                asked
                    .is_manifest()
                    .then(|| Reply::new(200, for_others.clone()))
            },
        ),
        fault("wrong diff", other_diff, 2, "layer 2 of", |_, _| None),
        fault("climbing tar", climbing, 2, "climbs with `..`", |_, _| None),
    ]
}

#[test]
fn each_fault_of_a_registry_has_its_message_and_leaves_nothing() -> Result<()> {
    in_each_mode("faults", |env, fixture| {
        for (name, image, behaviour, code, said) in faults() {
            let server = Server::start(&image, behaviour);
            let call = call(env, fixture);
            let output = says(&call, &["pull", &server.reference()], code).context(name)?;
            ensure!(output.stderr.contains(said), "{name}: {}", output.stderr);
            ensure!(output.stdout.is_empty(), "{name}: {}", output.stdout);
            nothing_is_left(&call, fixture).context(name)?;
        }
        Ok(())
    })
}

#[test]
fn a_manifest_of_another_digest_is_refused() -> Result<()> {
    in_each_mode("pinned", |env, fixture| {
        let image = usual();
        let server = Server::start(&image, {
            let manifest = image.manifest.clone();
            move |asked, _| {
                asked
                    .is_manifest()
                    .then(|| Reply::new(200, manifest.clone()))
            }
        });
        let call = call(env, fixture);
        let name = format!("127.0.0.1:{}/team/app", server.port);
        let wrong = format!("{name}@{}", digest(b"something else"));
        let output = says(&call, &["pull", &wrong], 2)?;
        ensure!(
            output.stderr.contains("the manifest of"),
            "{}",
            output.stderr
        );
        nothing_is_left(&call, fixture)?;
        let right = format!("{name}@{}", digest(&image.manifest));
        let output = says(&call, &["pull", &right], 0)?;
        ensure!(
            output.stdout.starts_with(&digest(&image.manifest)),
            "{}",
            output.stdout
        );
        Ok(())
    })
}

#[test]
fn what_passes_is_tried_again_and_half_a_blob_is_gone_on_with() -> Result<()> {
    in_each_mode("again", |env, fixture| {
        let image = usual();
        let (big, blob) = (digest(&image.blobs[0]), image.blobs[0].clone());
        let (half, whole) = (blob.len() / 2, blob.len());
        let server = Server::start(&image, move |asked, count| match count {
            0 if asked.is_manifest() => Some(Reply::new(503, "")),
            1 if asked.is_manifest() => Some(Reply::new(429, "").with("retry-after", "0")),
            0 if asked.path.ends_with(&big) => Some(ranged(asked, &blob).cut(half)),
            1 if asked.path.ends_with(&big) => Some(Reply::new(500, "")),
            _ => None,
        });
        let call = call(env, fixture);
        let output = says(&call, &["pull", &server.reference()], 0)?;
        ensure!(output.stderr.contains("trying again"), "{}", output.stderr);
        let big = digest(&image.blobs[0]);
        let asked: Vec<Asked> = server
            .asked()
            .into_iter()
            .filter(|asked| asked.path.ends_with(&big))
            .collect();
        ensure!(asked.len() == 3, "{asked:?}");
        // What came before the cut is not asked for again.
        let from = asked[2].header("range");
        let from: usize = from
            .trim_start_matches("bytes=")
            .trim_end_matches('-')
            .parse()
            .with_context(|| format!("{asked:?}"))?;
        ensure!(from > 0 && from <= half && half < whole, "{from}");
        says(&call, &["verify", &server.reference()], 0)?;
        Ok(())
    })
}

#[test]
fn a_killed_pull_goes_on_where_it_was() -> Result<()> {
    in_each_mode("killed", |env, fixture| {
        let image = usual();
        let (big, blob) = (digest(&image.blobs[0]), image.blobs[0].clone());
        let half = blob.len() / 2;
        let server = Server::start(&image, move |asked, count| {
            let mut stalled = ranged(asked, &blob).cut(half);
            stalled.stall = true;
            (count == 0 && asked.path.ends_with(&big)).then_some(stalled)
        });
        let call = call(env, fixture);
        let reference = server.reference();
        let live = call.live(&["image", "pull", &reference])?;
        let name = digest(&image.blobs[0]).replace("sha256:", "");
        let partial = fixture.state.join("images/partial").join(&name);
        let deadline = Instant::now() + Duration::from_secs(60);
        while partial.metadata().map_or(0, |m| m.len()) != half as u64 {
            ensure!(Instant::now() < deadline, "no half of it came");
            std::thread::sleep(Duration::from_millis(10));
        }
        live.signal(Signal::KILL)?;
        live.finish()?;
        let list = says(&call, &["list"], 0)?;
        ensure!(list.stdout.is_empty(), "{}", list.stdout);
        says(&call, &["pull", &reference], 0)?;
        let last = server
            .asked()
            .into_iter()
            .rfind(|asked| asked.path.ends_with(&name))
            .context("the blob was asked for")?;
        ensure!(last.header("range") == format!("bytes={half}-"), "{last:?}");
        says(&call, &["verify", &reference], 0)?;
        // The blobs themselves are not needed any more.
        let partials = shelf(fixture)?;
        ensure!(
            partials
                .iter()
                .all(|path| !path.starts_with(fixture.state.join("images/partial"))),
            "{partials:?}"
        );
        Ok(())
    })
}

#[test]
fn two_pulls_at_once_get_each_layer_once() -> Result<()> {
    in_each_mode("twice", |env, fixture| {
        let image = usual();
        let server = Server::start(&image, |_, _| None);
        let call = call(env, fixture);
        let reference = server.reference();
        let both = [
            call.live(&["image", "pull", &reference])?,
            call.live(&["image", "pull", &reference])?,
        ];
        for one in both {
            one.finish()?.exits(0)?;
        }
        for blob in &image.blobs {
            let name = digest(blob);
            let times = server
                .asked()
                .iter()
                .filter(|a| a.path.ends_with(&name))
                .count();
            ensure!(times == 1, "{name} was asked for {times} times");
        }
        says(&call, &["verify", &reference], 0)?;
        Ok(())
    })
}

/// A registry that wants a token, gives it at a place of its own, and keeps its blobs elsewhere.
#[test]
fn tokens_are_got_and_credentials_stay_where_they_belong() -> Result<()> {
    in_each_mode("tokens", |env, fixture| {
        let image = usual();
        let store = Server::start(&image, |_, _| None);
        let store_port = store.port;
        let registry = Server::start(&image, move |asked, _| {
            if asked.path.starts_with("/token") {
                let good = asked.header("authorization") == "Basic bWU6YSB3b3Jk"
                    && asked.path.contains("scope=repository%3Ateam%2Fapp%3Apull")
                    && asked.path.contains("service=the%20service");
                return Some(if good {
                    Reply::new(200, r#"{"token":"T0K3N"}"#)
                } else {
                    Reply::new(401, "{}")
                });
            }
            if asked.header("authorization") != "Bearer T0K3N" {
                let challenge = format!(
                    r#"Bearer realm="http://{}/token",service="the service""#,
                    asked.header("host")
                );
                return Some(Reply::new(401, "").with("www-authenticate", challenge));
            }
            let there = format!("http://127.0.0.1:{store_port}{}", asked.path);
            asked
                .is_blob()
                .then(|| Reply::new(307, "").with("location", there))
        });
        let call = call(env, fixture);
        let output = says(&call, &["pull", &registry.reference()], 3)?;
        ensure!(output.stderr.contains("who asks"), "{}", output.stderr);
        nothing_is_left(&call, fixture)?;

        let docker = fixture.state.with_file_name("docker");
        std::fs::create_dir_all(&docker)?;
        let entry = |word: &str| {
            let host = format!("127.0.0.1:{}", registry.port);
            json!({ "auths": { host: { "username": "me", "password": word } } })
        };
        let mut file = std::fs::File::create(docker.join("config.json"))?;
        write!(file, "{}", entry("wrong"))?;
        let output = says(&call, &["pull", &registry.reference()], 3)?;
        ensure!(
            output.stderr.contains("does not let this user"),
            "{}",
            output.stderr
        );
        ensure!(!output.stderr.contains("wrong"), "{}", output.stderr);

        std::fs::write(docker.join("config.json"), entry("a word").to_string())?;
        says(&call, &["pull", &registry.reference()], 0)?;
        let leaked: Vec<Asked> = store
            .asked()
            .into_iter()
            .filter(|asked| !asked.header("authorization").is_empty())
            .collect();
        ensure!(!store.asked().is_empty() && leaked.is_empty(), "{leaked:?}");
        Ok(())
    })
}

/// Who keeps the blobs asks who we are, and names a place of its own for the answer.
#[test]
fn only_the_registry_itself_asks_who_we_are() -> Result<()> {
    in_each_mode("asks", |env, fixture| {
        let image = usual();
        let thief = Server::start(&image, |_, _| Some(Reply::new(200, r#"{"token":"T"}"#)));
        let realm = format!("http://127.0.0.1:{}/token", thief.port);
        for scheme in [format!("Bearer realm=\"{realm}\""), "Basic realm=x".into()] {
            let store = Server::start(&image, move |_, _| {
                Some(Reply::new(401, "").with("www-authenticate", scheme.as_str()))
            });
            let port = store.port;
            let registry = Server::start(&image, move |asked, _| {
                let there = format!("http://127.0.0.1:{port}{}", asked.path);
                asked
                    .is_blob()
                    .then(|| Reply::new(307, "").with("location", there))
            });
            let docker = fixture.state.with_file_name("docker");
            std::fs::create_dir_all(&docker)?;
            let host = format!("127.0.0.1:{}", registry.port);
            let entry = json!({ "auths": { host: { "username": "me", "password": "a word" } } });
            std::fs::write(docker.join("config.json"), entry.to_string())?;
            let call = call(env, fixture);
            let output = says(&call, &["pull", &registry.reference()], 3)?;
            ensure!(output.stderr.contains("does not let"), "{}", output.stderr);
            let told = [store.asked(), thief.asked(), registry.asked()].concat();
            let told = told
                .iter()
                .any(|asked| !asked.header("authorization").is_empty());
            ensure!(!told && thief.asked().is_empty(), "{:?}", thief.asked());
            nothing_is_left(&call, fixture)?;
        }
        Ok(())
    })
}

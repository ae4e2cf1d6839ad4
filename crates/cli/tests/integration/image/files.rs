//! Images from files, and what `verify` says of layers that were changed.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::image::made::{Made, digest, tar, usual};
use crate::image::{call, nothing_is_left, says, shelf, text};
use crate::support::in_each_mode;

fn blob_path(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", digest(bytes).replace("sha256:", ""))
}

/// As `docker save` has written it for years: layers as they are, one of them behind a link.
pub fn saved(image: &Made) -> Vec<u8> {
    let config = format!("{}.json", digest(&image.config).replace("sha256:", ""));
    let names: Vec<String> = (0..image.tars.len())
        .map(|number| format!("{number}/layer.tar"))
        .collect();
    let manifest = json!([{
        "Config": config,
        "RepoTags": ["team/saved:2"],
        "Layers": names,
    }])
    .to_string();
    let mut entries: Vec<(&str, &[u8])> = vec![
        ("0/", b""),
        (&config[..90.min(config.len())], &image.config),
    ];
    for (number, (name, tar)) in names.iter().zip(&image.tars).enumerate() {
        match number {
            1 => entries.extend([
                ("real/layer.tar", tar.as_slice()),
                (name, b"-> ../real/layer.tar"),
            ]),
            _ => entries.push((name, tar)),
        }
    }
    entries.push(("manifest.json", manifest.as_bytes()));
    tar(&entries)
}

/// An OCI layout.
fn layout(image: &Made, name: &str) -> Vec<u8> {
    let index = json!({ "schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest(&image.manifest),
        "size": image.manifest.len(),
        "annotations": { "org.opencontainers.image.ref.name": name },
    }]})
    .to_string();
    let (config, manifest) = (blob_path(&image.config), blob_path(&image.manifest));
    let (one, two) = (blob_path(&image.blobs[0]), blob_path(&image.blobs[1]));
    tar(&[
        ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#),
        ("index.json", index.as_bytes()),
        (&config, &image.config),
        (&manifest, &image.manifest),
        (&one, &image.blobs[0]),
        (&two, &image.blobs[1]),
    ])
}

/// A digest is what somebody pins: a file that calls itself so is not it.
#[test]
fn a_file_does_not_say_which_digest_it_is() -> Result<()> {
    in_each_mode("pinned", |env, fixture| {
        let image = usual();
        let call = call(env, fixture);
        let pinned = format!("team/saved@{}", digest(b"what was reviewed"));
        let named = |name: &str| layout(&image, name);
        let file = env.put(fixture, "pinned.tar", named(&pinned))?;
        let output = says(&call, &["import", text(&file)], 2)?;
        ensure!(output.stderr.contains("name"), "{}", output.stderr);
        says(&call, &["verify", &pinned], 2)?;
        // Under a name that is taken, who had it is told.
        let other = crate::image::made::image(&[tar(&[("etc/", b"")]), tar(&[("etc/a", b"a")])]);
        let file = env.put(fixture, "one.tar", named("team/laid:3"))?;
        says(&call, &["import", text(&file)], 0)?;
        let file = env.put(fixture, "two.tar", layout(&other, "team/laid:3"))?;
        let output = says(&call, &["import", text(&file)], 0)?;
        let before = format!("was {} before", digest(&image.manifest));
        ensure!(output.stderr.contains(&before), "{}", output.stderr);
        Ok(())
    })
}

#[test]
fn files_of_each_kind_are_imported() -> Result<()> {
    in_each_mode("imported", |env, fixture| {
        let image = usual();
        let call = call(env, fixture);
        let file = env.put(fixture, "saved.tar", saved(&image))?;
        let output = says(&call, &["import", text(&file)], 0)?;
        let id = digest(&image.config);
        ensure!(
            output.stdout == format!("{id}  team/saved:2\n"),
            "{}",
            output.stdout
        );
        says(&call, &["verify", "team/saved:2"], 0)?;

        let file = env.put(fixture, "layout.tar", layout(&image, "team/laid:3"))?;
        let output = says(&call, &["import", text(&file), "--json"], 0)?;
        let row: Value = serde_json::from_str(&output.stdout)?;
        ensure!(row["digest"] == digest(&image.manifest).as_str(), "{row}");
        ensure!(
            output.stderr.contains("2 of them here"),
            "{}",
            output.stderr
        );

        let rootfs = tar(&[("bin/", b""), ("bin/sh", b"a shell")]);
        let file = env.put(fixture, "rootfs.tar", &rootfs)?;
        let output = says(&call, &["import", text(&file)], 2)?;
        ensure!(output.stderr.contains("has no name"), "{}", output.stderr);
        says(&call, &["import", text(&file), "--name", "root:1"], 0)?;
        // Through a pipe, too.
        let piped = call_with_input(env, fixture, &rootfs);
        let again = says(&piped, &["import", "-", "--name", "root:2"], 0)?;
        ensure!(again.stdout.contains("root:2"), "{}", again.stdout);
        let listed = says(&call, &["list"], 0)?;
        ensure!(listed.stdout.lines().count() == 3, "{}", listed.stdout);
        ensure!(
            listed.stdout.contains("root:1, root:2"),
            "{}",
            listed.stdout
        );
        for name in ["team/saved:2", "team/laid:3", "root:1", "root:2"] {
            says(&call, &["rm", name], 0)?;
        }
        let left = shelf(fixture)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

fn call_with_input<'a>(
    env: &'a crate::support::Sandboxed,
    fixture: &'a crate::support::Fixture,
    input: &[u8],
) -> crate::support::Call<'a> {
    call(env, fixture).input(input)
}

#[test]
fn files_that_are_no_images_leave_nothing() -> Result<()> {
    in_each_mode("no-images", |env, fixture| {
        let image = usual();
        let call = call(env, fixture);
        let whole = layout(&image, "team/laid:3");
        let mut bent = whole.clone();
        let at = memchr::memmem::find(&bent, &image.blobs[1]).context("the layer is in it")?;
        bent[at + 20] ^= 1;
        let saved = saved(&image);
        for (name, content, said) in [
            ("text", b"not a tar at all".to_vec(), "is no image"),
            ("half", whole[..whole.len() / 2].to_vec(), "is no image"),
            ("bent", bent, "layer 2 of"),
            (
                "config",
                whole.replace_config(&image),
                "is not what its digest says",
            ),
            ("climbing", tar(&[("../x", b"")]), "climbs"),
            (
                "no layer",
                saved.replace_text("0/layer.tar", "9/layer.tar"),
                "it has no",
            ),
        ] {
            let file = env.put(fixture, "file.tar", content)?;
            let output = says(&call, &["import", text(&file), "--name", "a:1"], 2).context(name)?;
            ensure!(output.stderr.contains(said), "{name}: {}", output.stderr);
            nothing_is_left(&call, fixture).context(name)?;
        }
        let output = says(&call, &["import", "/absent"], 4)?;
        ensure!(output.stderr.contains("/absent"), "{}", output.stderr);
        Ok(())
    })
}

trait Bent {
    fn replace_text(&self, from: &str, to: &str) -> Vec<u8>;
    fn replace_config(&self, image: &Made) -> Vec<u8>;
}

impl Bent for Vec<u8> {
    /// The last of several texts, which is in a content and not in a header.
    fn replace_text(&self, from: &str, to: &str) -> Vec<u8> {
        let mut bytes = self.clone();
        let at = memchr::memmem::rfind(&bytes, from.as_bytes()).expect("it is there");
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        bytes
    }

    /// Another configuration where one of some digest should be.
    fn replace_config(&self, image: &Made) -> Vec<u8> {
        let mut bytes = self.clone();
        let at = memchr::memmem::find(&bytes, &image.config).expect("it is there");
        bytes[at + 1] = b' ';
        bytes
    }
}

#[test]
fn layers_that_were_changed_are_told() -> Result<()> {
    in_each_mode("changed", |env, fixture| {
        let image = usual();
        let call = call(env, fixture);
        let file = env.put(fixture, "saved.tar", saved(&image))?;
        says(&call, &["import", text(&file)], 0)?;
        let name = digest(&image.tars[0]).replace("sha256:", "");
        let layer = fixture.state.join("images/layers").join(name);
        std::fs::write(layer.join("bin/tool"), "#!/bin/sh\necho evil\n")?;
        std::fs::write(layer.join("added"), "x")?;
        std::fs::remove_file(layer.join("etc/old"))?;
        std::fs::set_permissions(layer.join("big"), std::fs::Permissions::from_mode(0o4755))?;
        let output = says(&call, &["verify", "team/saved:2"], 1)?;
        for said in [
            "`bin/tool` has another content",
            "`added` was not in the image",
            "`etc/old` is gone",
            "`big` has the mode 4755, and had 0755",
        ] {
            ensure!(output.stdout.contains(said), "{said}: {}", output.stdout);
        }
        let lines = output
            .stdout
            .lines()
            .filter(|line| line.starts_with("    "));
        ensure!(lines.count() == 4, "{}", output.stdout);
        // The list itself is known by its digest.
        let list = layer.with_extension("list");
        let mut bytes = std::fs::read(&list)?;
        bytes.truncate(bytes.len() / 2);
        std::fs::write(&list, bytes)?;
        let output = says(&call, &["verify", "team/saved:2", "--json"], 1)?;
        ensure!(
            output.stdout.contains("is damaged or gone"),
            "{}",
            output.stdout
        );
        says(&call, &["rm", "team/saved:2"], 0)?;
        nothing_is_left(&call, fixture)
    })
}

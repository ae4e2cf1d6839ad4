//! The `docker-registry` of Debian, in the clear and behind TLS and a password.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::image::made::{
    self, DOCKER_MANIFEST, Made, OCI_INDEX, OCI_MANIFEST, digest, index, tar, usual,
};
use crate::image::registry::Registry;
use crate::image::{call, nothing_is_left, says, shelf, text};
use crate::support::{Fixture, Sandboxed, in_each_mode_in_turn};

/// The word is `a word`.
const HTPASSWD: &str = "me:$2y$04$G0XzqJE.lwhUxZg04/yFpuFU.ZiG.eKyN.sxHfLiVa4uLQ4E.A09W\n";

#[test]
fn an_image_is_pulled_checked_shared_and_removed() -> Result<()> {
    let place = tempfile::tempdir()?;
    let Some(registry) = Registry::start(place.path(), "")? else {
        return Ok(());
    };
    let image = usual();
    registry.push(&image, "team/app", "1", OCI_MANIFEST)?;
    // The same first layer, in Docker's own form, behind an index of several machines.
    let more = made::image(&[image.tars[0].clone(), tar(&[("more", b"m")])]);
    let docker = String::from_utf8(more.manifest.clone())?
        .replace(OCI_MANIFEST, DOCKER_MANIFEST)
        .replace(
            "vnd.oci.image.config.v1+json",
            "vnd.docker.container.image.v1+json",
        )
        .replace(
            "vnd.oci.image.layer.v1.tar+gzip",
            "vnd.docker.image.rootfs.diff.tar.gzip",
        );
    let more = Made {
        manifest: docker.into_bytes(),
        ..more
    };
    registry.push(&more, "team/more", "1", DOCKER_MANIFEST)?;
    let list = index(&more.manifest, &[made::architecture()]);
    let list = String::from_utf8(list)?.replace(OCI_MANIFEST, DOCKER_MANIFEST);
    registry.push_manifest("team/more", "all", OCI_INDEX, list.as_bytes())?;
    in_each_mode_in_turn("real", |env, fixture| {
        let call = call(env, fixture);
        let (app, more_name) = (registry.name("team/app:1"), registry.name("team/more:all"));
        let pulled = says(&call, &["pull", &app], 0)?;
        ensure!(
            pulled.stdout.starts_with(&digest(&image.manifest)),
            "{}",
            pulled.stdout
        );
        ensure!(
            pulled.stderr.contains("2 layers, 0 of them here"),
            "{}",
            pulled.stderr
        );
        looks_right(fixture, &image)?;
        let pulled = says(&call, &["pull", &app, "--json"], 0)?;
        ensure!(
            pulled.stderr.contains("2 of them here"),
            "{}",
            pulled.stderr
        );
        let pulled = says(&call, &["pull", &more_name], 0)?;
        ensure!(
            pulled.stdout.starts_with(&digest(&more.manifest)),
            "{}",
            pulled.stdout
        );
        ensure!(
            pulled.stderr.contains("2 layers, 1 of them here"),
            "{}",
            pulled.stderr
        );
        let listed = says(&call, &["list", "--json"], 0)?;
        ensure!(listed.stdout.lines().count() == 2, "{}", listed.stdout);
        says(&call, &["verify", &app], 0)?;
        says(&call, &["rm", &app], 0)?;
        says(&call, &["verify", &more_name], 0)?;
        says(&call, &["rm", &more_name], 0)?;
        let left = shelf(fixture)?;
        ensure!(left.is_empty(), "{left:?}");
        says(&call, &["rm", &more_name], 2)?;
        Ok(())
    })
}

/// What is on the disk is what overlayfs takes as lower directories.
fn looks_right(fixture: &Fixture, image: &Made) -> Result<()> {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let layer = |number: usize| -> PathBuf {
        let name = digest(&image.tars[number]).replace("sha256:", "");
        fixture.state.join("images/layers").join(name)
    };
    let tool = std::fs::read_to_string(layer(0).join("bin/tool"))?;
    ensure!(tool == "#!/bin/sh\necho tool\n", "{tool}");
    ensure!(std::fs::read_link(layer(0).join("bin/sh"))? == Path::new("/bin/tool"));
    let gone = layer(1).join("etc/old").symlink_metadata()?;
    ensure!(gone.file_type().is_char_device() && gone.rdev() == 0);
    ensure!(std::fs::read(layer(1).join("etc/changed"))? == b"second");
    Ok(())
}

#[test]
fn tls_and_passwords_are_kept_to() -> Result<()> {
    let place = tempfile::tempdir()?;
    let Some(open) = Registry::start(place.path(), "")? else {
        return Ok(());
    };
    open.push(&usual(), "team/app", "1", OCI_MANIFEST)?;
    drop(open);
    let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let (certificate, key) = (place.path().join("cert.pem"), place.path().join("key.pem"));
    std::fs::write(&certificate, signed.cert.pem())?;
    std::fs::write(&key, signed.signing_key.serialize_pem())?;
    let users = place.path().join("htpasswd");
    std::fs::write(&users, HTPASSWD)?;
    let extra = format!(
        "  tls: {{ certificate: '{}', key: '{}' }}\n\
         auth:\n  htpasswd: {{ realm: test, path: '{}' }}\n",
        certificate.display(),
        key.display(),
        users.display()
    );
    let Some(registry) = Registry::start(place.path(), &extra)? else {
        return Ok(());
    };
    for readable in [place.path(), &certificate] {
        std::fs::set_permissions(readable, std::fs::Permissions::from_mode(0o755))?;
    }
    in_each_mode_in_turn("tls", |env, fixture| {
        let (app, docker) = (
            registry.name("team/app:1"),
            fixture.state.with_file_name("docker"),
        );
        let stranger = call(env, fixture);
        let output = says(&stranger, &["pull", &app], 4)?;
        ensure!(
            output.stderr.contains("cannot be believed"),
            "{}",
            output.stderr
        );
        nothing_is_left(&stranger, fixture)?;

        let call = stranger.variable("SSL_CERT_FILE", text(&certificate));
        let output = says(&call, &["pull", &app], 3)?;
        ensure!(output.stderr.contains("who asks"), "{}", output.stderr);

        std::fs::create_dir_all(&docker)?;
        let host = registry.name("");
        let host = host.trim_end_matches('/');
        let config = docker.join("config.json");
        let auths = |auth: &str| json!({ "auths": { host: { "auth": auth } } }).to_string();
        std::fs::write(&config, auths("bWU6d3Jvbmc="))?;
        let output = says(&call, &["pull", &app], 3)?;
        ensure!(
            output.stderr.contains("does not let this user"),
            "{}",
            output.stderr
        );
        nothing_is_left(&call, fixture)?;
        std::fs::write(&config, auths("bWU6YSB3b3Jk"))?;
        says(&call, &["pull", &app], 0)?;
        says(&call, &["rm", &app], 0)?;
        by_helper(env, fixture, &registry, &certificate)
    })
}

/// A program gives the credentials; what it was asked for is the registry.
fn by_helper(
    env: &Sandboxed,
    fixture: &Fixture,
    registry: &Registry,
    certificate: &Path,
) -> Result<()> {
    let docker = fixture.state.with_file_name("docker");
    let (app, host) = (registry.name("team/app:1"), registry.name(""));
    let host = host.trim_end_matches('/');
    let helper = docker.join("docker-credential-testing");
    let script = format!(
        "#!/bin/sh\nread -r host\n[ \"$1 $host\" = 'get {host}' ] || exit 7\n\
         echo '{{\"ServerURL\":\"x\",\"Username\":\"me\",\"Secret\":\"a word\"}}'\n"
    );
    std::fs::write(&helper, script)?;
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755))?;
    let path = format!("{}:/usr/bin:/bin", docker.display());
    let call = call(env, fixture)
        .variable("SSL_CERT_FILE", text(certificate))
        .variable("PATH", &path);
    let config = docker.join("config.json");
    for (config_text, code) in [
        (json!({ "credHelpers": { host: "testing" } }), 0),
        (json!({ "credsStore": "testing" }), 0),
        (
            json!({ "credHelpers": { host: "absent" }, "credsStore": "testing" }),
            4,
        ),
        (json!({ "credsStore": "../testing" }), 4),
    ] {
        std::fs::write(&config, config_text.to_string())?;
        let output = says(&call, &["pull", &app], code).context(config_text.to_string())?;
        match code {
            0 => drop(says(&call, &["rm", &app], 0)?),
            _ => ensure!(
                output.stderr.contains("credential helper"),
                "{}",
                output.stderr
            ),
        }
    }
    nothing_is_left(&call, fixture)
}

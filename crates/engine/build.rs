//! Builds the guest as a small static program and hands its path to `guest.rs`, which embeds it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let workspace = here.join("../..");
    for part in ["guest", "jail", "model"] {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join("crates").join(part).display()
        );
    }
    println!(
        "cargo::rerun-if-changed={}",
        workspace.join("Cargo.lock").display()
    );
    println!(
        "cargo::rerun-if-changed={}",
        workspace.join("Cargo.toml").display()
    );

    let target = env::var("TARGET").expect("cargo sets it");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // One build for all profiles of the engine: beside them, not inside one of them.
    let target_dir = out
        .ancestors()
        .nth(4)
        .unwrap_or(&out)
        .join("ringfence-guest");
    let status = Command::new(env::var_os("CARGO").expect("cargo sets it"))
        .args([
            "build",
            "--locked",
            "--package",
            "ringfence-guest",
            "--profile",
            "guest",
        ])
        .args(["--target", &target, "--target-dir"])
        .arg(&target_dir)
        .current_dir(&workspace)
        // The flags of the outer build are for the outer build.
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS")
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            "-Ctarget-feature=+crt-static\x1f-Crelocation-model=static",
        )
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the guest did not build");
    let guest = target_dir.join(&target).join("guest/ringfence-guest");
    assert!(is_small(&guest), "the guest is over its bound of 2 MB");
    println!("cargo::rustc-env=RINGFENCE_GUEST={}", guest.display());
}

/// BOUND: what is copied at each start of a sandbox stays small.
fn is_small(guest: &Path) -> bool {
    guest
        .metadata()
        .is_ok_and(|metadata| metadata.len() <= 2_000_000)
}

//! Builds the programs of the inside (the guest and the direct tools) as small static programs and
//! hands their paths to `guest.rs`, which embeds them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

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
            "--bins",
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
    let built = target_dir.join(&target).join("guest");
    let guest = built.join("ringfence-guest");
    // BOUND: what is copied at each start of a sandbox stays small.
    assert_size(&guest, 2_000_000);
    println!("cargo::rustc-env=RINGFENCE_GUEST={}", guest.display());
    let tools = built.join("ringfence-tools");
    // BOUND: what is written once to each home; a regex engine has its size.
    assert_size(&tools, 4_000_000);
    println!("cargo::rustc-env=RINGFENCE_TOOLS={}", tools.display());
    println!("cargo::rustc-env=RINGFENCE_TOOLS_DIGEST={}", digest(&tools));
}

fn assert_size(program: &Path, bound: u64) {
    let size = program.metadata().expect("it was built").len();
    assert!(
        size <= bound,
        "{} has {size} bytes, over its bound of {bound}",
        program.display()
    );
}

/// Taken here and not at each start: hashing millions of bytes takes its time.
fn digest(program: &Path) -> String {
    let bytes = std::fs::read(program).expect("it was built");
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

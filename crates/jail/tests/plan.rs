//! The plan of a sandbox is data, and this is what it says: a change of what an agent can see or
//! do shows as a change of `plan.golden`. Write it anew with `RINGFENCE_BLESS=1 cargo test`.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::PathBuf;

use ringfence_jail::accounts::Accounts;
use ringfence_jail::facts::{HostFacts, Item, MaskType};
use ringfence_jail::identity::Identity;
use ringfence_jail::plan::{
    Access, Area, GateSpec, Holds, HostMount, ImageRoot, KnownDirectory, MOST_LAYERS, Op,
    PlanError, PrivateOverlay, Root, Runs, Scratch, Spec, WorkspaceSpec, plan,
};

fn facts() -> HostFacts {
    HostFacts {
        system: vec![
            ("usr".into(), Item::Directory),
            ("bin".into(), Item::Symlink(b"usr/bin".to_vec())),
            ("nix/store".into(), Item::Directory),
        ],
        etc: vec![
            ("ld.so.cache".into(), Item::File(b"cache".to_vec())),
            (
                "localtime".into(),
                Item::Symlink(b"/usr/share/zoneinfo/UTC".to_vec()),
            ),
            ("ssl/certs".into(), Item::Directory),
        ],
        proc_masks: vec![
            ("acpi".into(), MaskType::Directory),
            ("kcore".into(), MaskType::File),
        ],
        bundles: vec!["etc/ssl/certs/ca-certificates.crt".into()],
        accounts: Accounts::default(),
    }
}

fn spec(identity: Identity, inside: &str) -> Spec {
    Spec {
        identity,
        runs: Runs::Agent,
        hostname: "ringfence".into(),
        root: Root::Host,
        workspace: WorkspaceSpec {
            lower: vec!["/state/mask".into(), "/folder".into()],
            below: Vec::new(),
            layer: "/state".into(),
            inside: inside.into(),
            objects: vec![KnownDirectory {
                host: "/folder/.git/objects".into(),
                identity: (1, 2),
                owner: (4242, 4242),
            }],
            holds: Holds::Folder,
            tools: None,
            areas: Vec::new(),
        },
        overlays: Vec::new(),
        mounts: Vec::new(),
        tmpfs: Vec::new(),
        tmpfs_bytes: 1 << 30,
        gate: None,
    }
}

const SINGLE: Identity = Identity::Single {
    uid: 4242,
    gid: 4242,
};
const RANGE: Identity = Identity::Range {
    base: 0x7000_0000,
    length: 65_536,
    owner_uid: 0,
    owner_gid: 0,
};

/// What a sandbox on an image has of the host and of the image.
fn image_facts() -> HostFacts {
    HostFacts {
        system: Vec::new(),
        etc: Vec::new(),
        ..facts()
    }
}

fn on_image(identity: Identity) -> Spec {
    Spec {
        root: Root::Image(ImageRoot {
            lower: vec!["/images/top".into(), "/images/bottom".into()],
            setup: None,
            writable: None,
        }),
        ..spec(identity, "/workspace")
    }
}

/// A setup that is root of its image.
fn setup() -> Spec {
    let mut setup = on_image(RANGE);
    setup.runs = Runs::Setup;
    if let Root::Image(image) = &mut setup.root {
        image.writable = Some("/environments/x".into());
    }
    setup
}

/// A sandbox on what a setup has made, with all that can be shown besides.
fn furnished() -> Spec {
    let mut furnished = on_image(SINGLE);
    if let Root::Image(image) = &mut furnished.root {
        image.setup = Some("/environments/x/root".into());
    }
    furnished.overlays = [
        ("/home/agent", "home"),
        ("/home/agent/.cargo/registry", "c"),
    ]
    .map(|(inside, name)| PrivateOverlay {
        inside: inside.into(),
        lower: vec![format!("/shared/{name}").into()],
        layer: format!("/state/{name}").into(),
    })
    .to_vec();
    furnished.tmpfs = [("/var/tmp/db", 512 << 20), ("/var/lib/db", 1 << 20)]
        .map(|(inside, bytes)| Scratch {
            inside: inside.into(),
            bytes,
        })
        .to_vec();
    furnished.mounts = vec![HostMount {
        host: "/key.pub".into(),
        identity: (1, 2),
        is_directory: false,
        owner: (3, 4),
        inside: "/opt/keys/key.pub".into(),
        access: Access::ReadOnly,
    }];
    furnished
}

#[test]
fn r61_the_plan_is_what_it_was() {
    let (mut text, mut images) = (String::new(), String::new());
    let mut lasting = spec(SINGLE, "/workspace");
    lasting.workspace.lower.insert(0, "/state/layer".into());
    lasting.workspace.holds = Holds::Everything;
    lasting.workspace.tools = Some("/state/tools".into());
    let mut held = spec(SINGLE, "/workspace");
    held.workspace.areas = [
        ("", Access::ReadOnly),
        ("src", Access::Write),
        ("src/vendor", Access::ReadOnly),
    ]
    .map(|(path, access)| Area {
        path: path.into(),
        access,
    })
    .to_vec();
    held.mounts = [
        ("/data", "/data", true, Access::ReadOnly),
        ("/cache", "/home/agent/.cache", true, Access::Write),
        ("/key.pub", "/opt/key.pub", false, Access::ReadOnly),
    ]
    .map(|(host, inside, is_directory, access)| HostMount {
        host: host.into(),
        identity: (1, 2),
        is_directory,
        owner: (3, 4),
        inside: inside.into(),
        access,
    })
    .to_vec();
    for (name, spec) in [
        ("as root, on an image", on_image(RANGE)),
        ("a setup on an image", setup()),
        ("rootless, on an image and what a setup made", furnished()),
    ] {
        writeln!(images, "# {name}").unwrap();
        for op in plan(&spec, &image_facts()).unwrap() {
            writeln!(images, "{op:?}").unwrap();
        }
    }
    for (name, spec) in [
        ("rootless", spec(SINGLE, "/workspace")),
        ("as root", spec(RANGE, "/workspace")),
        ("rootless, lasting", lasting),
        ("rootless, with areas and mounts", held),
    ] {
        writeln!(text, "# {name}").unwrap();
        for op in plan(&spec, &facts()).unwrap() {
            writeln!(text, "{op:?}").unwrap();
        }
    }
    is_golden("plan.golden", &text);
    is_golden("image.golden", &images);
}

fn is_golden(name: &str, text: &str) {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name);
    if std::env::var_os("RINGFENCE_BLESS").is_some() {
        std::fs::write(&golden, text).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    for (number, (was, is)) in expected.lines().zip(text.lines()).enumerate() {
        assert_eq!(was, is, "line {} of {}", number + 1, golden.display());
    }
    assert_eq!(expected.lines().count(), text.lines().count());
}

/// The root of an image takes no writes, so that whatever is mounted has a place before it is
/// joined: in the scaffold, or in something that was mounted earlier. And nothing of the image is
/// above the scaffold.
#[test]
fn every_place_on_an_image_is_ours() {
    for spec in [on_image(SINGLE), on_image(RANGE), setup(), furnished()] {
        let ops = plan(&spec, &image_facts()).unwrap();
        let enter = ops.iter().position(|op| matches!(op, Op::Enter { .. }));
        let (before, after) = ops.split_at(enter.unwrap());
        let name = |path: &std::ffi::CString| path.to_str().unwrap().to_owned();
        let mut places: Vec<String> = Vec::new();
        for op in before {
            if let Op::Directory { path, .. } | Op::File { path, .. } = op
                && let Some(path) = name(path).strip_prefix("scaffold/")
            {
                places.push(path.to_owned());
            }
        }
        let joined = before.iter().rev().find_map(|op| match op {
            Op::Overlay { options, .. } => Some(name(options)),
            _ => None,
        });
        assert!(joined.unwrap().starts_with("lowerdir=scaffold:0:1"));
        let mut mounts: Vec<String> = Vec::new();
        for op in after {
            let at = match op {
                Op::Attach { path, .. }
                | Op::Bind { path, .. }
                | Op::Tmpfs { path, .. }
                | Op::Devpts { path }
                | Op::Proc { path }
                | Op::Overlay { path, .. } => name(path),
                Op::Reveal { parts, .. } => parts.iter().map(name).collect::<Vec<_>>().join("/"),
                Op::Directory { path, .. } | Op::File { path, .. } | Op::Symlink { path, .. } => {
                    let path = name(path);
                    let within = mounts.iter().any(|mount| path.starts_with(mount));
                    assert!(within, "{path} would be made in the image");
                    continue;
                }
                _ => continue,
            };
            let within = |mount: &String| at.starts_with(&format!("{mount}/"));
            let known = places.contains(&at) || mounts.iter().any(within);
            assert!(known, "{at} has no place");
            mounts.push(at);
        }
    }
}

#[test]
fn what_a_setup_must_not_have_is_no_plan() {
    let fails = |spec: &Spec| plan(spec, &image_facts()).unwrap_err();
    let mut on_host = setup();
    on_host.root = Root::Host;
    assert!(matches!(fails(&on_host), PlanError::SetupWithoutImage));
    let mut writes = setup();
    writes.mounts = vec![HostMount {
        access: Access::Write,
        ..furnished().mounts[0].clone()
    }];
    assert!(matches!(fails(&writes), PlanError::SetupWritesHost(_)));
    let mut deep = on_image(SINGLE);
    if let Root::Image(image) = &mut deep.root {
        image.lower = vec!["/images/x".into(); MOST_LAYERS];
    }
    let ops = plan(&deep, &image_facts()).unwrap();
    for op in &ops {
        if let Op::Overlay { options, .. } = op {
            assert!(options.as_bytes().len() < 4096, "one page of options");
        }
    }
    if let Root::Image(image) = &mut deep.root {
        image.lower.push("/images/x".into());
    }
    assert!(matches!(fails(&deep), PlanError::TooManyLayers { .. }));
}

/// A gate shows as a name server, free ports and the certificates that are trusted.
#[test]
fn a_gate_changes_this_much_of_the_plan() {
    let without = spec(SINGLE, "/workspace");
    let mut with = without.clone();
    with.gate = Some(GateSpec {
        name_server: std::net::Ipv4Addr::new(127, 64, 0, 1),
        trust: Some("/state/ca.pem".into()),
        staged: vec![
            ("client".into(), None),
            ("client/settings".into(), Some(b"x".to_vec())),
        ],
    });
    let ops = |spec: &Spec| plan(spec, &facts()).unwrap();
    let before = ops(&without);
    let added: Vec<Op> = ops(&with)
        .into_iter()
        .filter(|op| !before.contains(op))
        .collect();
    let shown = format!("{added:#?}");
    for part in [
        "/state/ca.pem",
        "etc/resolv.conf",
        ".ringfence/ca.pem",
        "etc/ssl/certs/ca-certificates.crt",
        "ip_unprivileged_port_start",
        "127.64.0.1",
        ".ringfence/client/settings",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Two mounts of one file, each opened and attached; three files and settings; two staged; an
    // address.
    assert_eq!(added.len(), 10, "{shown}");
}

#[test]
fn nothing_is_looked_up_on_the_host_after_the_new_root() {
    for identity in [SINGLE, RANGE] {
        let ops = plan(&spec(identity, "/workspace"), &facts()).unwrap();
        let root = ops
            .iter()
            .position(|op| matches!(op, Op::NewRoot { .. }))
            .unwrap();
        let late = ops[root..].iter().any(|op| {
            matches!(
                op,
                Op::Open { .. } | Op::OpenExact { .. } | Op::Inherited { .. }
            )
        });
        assert!(!late);
        let attached = ops
            .iter()
            .filter(|op| matches!(op, Op::Attach { .. }))
            .count();
        let opened = ops
            .iter()
            .filter(|op| matches!(op, Op::Open { .. } | Op::OpenExact { .. }))
            .count();
        assert_eq!(
            attached, opened,
            "each mount that is opened is attached once"
        );
    }
}

#[test]
fn the_last_steps_take_away_and_never_give() {
    let ops = plan(&spec(SINGLE, "/workspace"), &facts()).unwrap();
    let pivot = ops.iter().position(|op| *op == Op::Pivot).unwrap();
    let after: Vec<&Op> = ops[pivot + 1..].iter().collect();
    assert!(matches!(
        after.as_slice(),
        [
            Op::Seal { .. },
            // Looking into processes of its own: nothing else is kept.
            Op::DropCapabilities {
                keep: 0x0008_0000,
                ambient: true
            },
            Op::NewSession,
            Op::NoCoreFiles,
            Op::NoNewPrivileges,
            Op::CloseDescriptors
        ]
    ));
}

#[test]
fn a_workspace_cannot_be_where_the_system_is() {
    for inside in [
        "/usr/src/x",
        "/etc",
        "/proc/x",
        "/tmp",
        "/home",
        "/",
        "relative",
        "/a/../b",
        "/.ringfence/x",
        "/var/tmp/x",
        "/dev/x",
        "/a//b",
    ] {
        assert!(plan(&spec(SINGLE, inside), &facts()).is_err(), "{inside}");
    }
    for inside in [
        "/workspace",
        "/data/someone/project",
        "/srv/code",
        "/tmp/checkout",
        "/opt/x",
        "/mnt/x",
        "/var/lib/x",
    ] {
        assert!(plan(&spec(SINGLE, inside), &facts()).is_ok(), "{inside}");
    }
}

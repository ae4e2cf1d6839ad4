//! Sandboxes whose `/` is an image: what is there, and what a hostile image cannot do.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use ringfence_engine::sandbox::SandboxError;
use ringfence_jail::identity::Identity;
use ringfence_jail::plan::{ImageRoot, MOST_LAYERS, PrivateOverlay, Root, Runs, Scratch, Spec};

use crate::shared::guest_bench::{Bench, exec, sh};

/// A shell and its tools in one static file; `None`, and said, where this machine has none.
fn busybox() -> Option<PathBuf> {
    let found = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from);
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        println!("SKIPPED sandboxes on an image: there is no busybox");
    }
    found
}

/// A directory that everybody may enter.
fn open_directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A layer with a shell.
fn shell_layer(dir: &Path, busybox: &Path) -> PathBuf {
    let layer = dir.join("shell");
    fs::create_dir_all(layer.join("bin")).unwrap();
    fs::create_dir_all(layer.join("etc")).unwrap();
    fs::copy(busybox, layer.join("bin/busybox")).unwrap();
    for name in [
        "sh", "cat", "ls", "id", "touch", "mkdir", "chown", "chmod", "stat", "grep", "rm", "df",
        "ln", "dd", "mknod", "test", "mv", "kill", "true",
    ] {
        symlink("busybox", layer.join("bin").join(name)).unwrap();
    }
    let passwd = "root:x:0:0:root:/root:/bin/sh\nimageuser:x:1234:1234::/:/bin/sh\n";
    fs::write(layer.join("etc/passwd"), passwd).unwrap();
    fs::write(layer.join("etc/image-release"), "of the image\n").unwrap();
    layer
}

fn on(lower: &[&Path]) -> Root {
    Root::Image(ImageRoot {
        lower: lower.iter().map(|layer| layer.to_path_buf()).collect(),
        setup: None,
        writable: None,
    })
}

fn start(root: Root) -> Bench {
    start_as(|spec| spec.root = root)
}

fn start_as(change: impl FnOnce(&mut Spec)) -> Bench {
    Bench::start_as(open_directory(), change).unwrap()
}

/// What a shell line says; it must end well.
fn says(bench: &mut Bench, line: &str) -> String {
    let done = bench.run(sh(line));
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.exited.code, Some(0), "{line}: {said}{errors}");
    said
}

#[test]
fn an_image_is_the_root_and_nothing_of_the_host_is_there() {
    let Some(busybox) = busybox() else { return };
    let dir = open_directory();
    let shell = shell_layer(dir.path(), &busybox);
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("etc")).unwrap();
    fs::write(top.join("etc/hosts"), "6.6.6.6 evil\n").unwrap();
    let mut bench = start(on(&[&top, &shell]));
    let said = says(
        &mut bench,
        "cat /etc/image-release /etc/hosts; ls -d /usr /lib* 2>&1; true",
    );
    assert!(
        said.starts_with("of the image\n127.0.0.1 localhost"),
        "{said}"
    );
    assert!(said.contains("/usr: No such file"), "{said}");
    let said = says(
        &mut bench,
        "id; cat /etc/passwd; echo x > /workspace/f; echo x > /tmp/f",
    );
    assert!(
        said.starts_with("uid=1000(agent) gid=1000(agent)"),
        "{said}"
    );
    assert!(said.contains("imageuser:x:1234"), "{said}");
    let refused = "for path in / /etc /bin /home /var /run /dev /.ringfence; do \
                   touch $path/x 2>/dev/null && echo $path; done; true";
    assert_eq!(says(&mut bench, refused), "");
    // What the caller owns on the disk is as closed.
    let inner = "chmod 777 /bin 2>&1; chmod 777 /etc/image-release 2>&1; true";
    assert!(says(&mut bench, inner).contains("Read-only"), "{inner}");
    let mounts = says(&mut bench, "cat /proc/self/mountinfo");
    let home = dir.path().to_str().unwrap();
    assert!(!mounts.contains(home), "{mounts}");
}

#[test]
fn images_of_nothing_and_of_one_program_start() {
    let dir = open_directory();
    let nothing = dir.path().join("nothing");
    fs::create_dir(&nothing).unwrap();
    for root in [on(&[]), on(&[&nothing])] {
        let mut bench = start(root);
        let done = bench.run(exec(&["sh", "-c", "true"]));
        assert_eq!(done.exited.code, Some(127), "there is no shell");
    }
    let Some(busybox) = busybox() else { return };
    fs::copy(busybox, nothing.join("busybox")).unwrap();
    let done = start(on(&[&nothing])).run(exec(&["/busybox", "echo", "alone"]));
    assert_eq!(done.stdout, b"alone\n");
}

/// Whatever an image has at our places, it is not followed, opened or shown.
#[test]
fn a_hostile_image_redirects_nothing() {
    let Some(busybox) = busybox() else { return };
    let dir = open_directory();
    let shell = shell_layer(dir.path(), &busybox);
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o777)).unwrap();
    let climb = format!("{}{}", "../".repeat(20), &outside.to_str().unwrap()[1..]);
    let places = [
        "proc",
        "dev",
        "tmp",
        "home",
        "workspace",
        ".ringfence",
        "etc",
        "var",
        "run",
        "data",
    ];
    type Make = fn(&Path, &str, &Path);
    let kinds: [(&str, Make); 5] = [
        ("absolute", |at, _, outside| symlink(outside, at).unwrap()),
        ("climbing", |at, climb, _| symlink(climb, at).unwrap()),
        ("loop", |at, _, _| {
            symlink(at.file_name().unwrap(), at).unwrap()
        }),
        ("file", |at, _, _| fs::write(at, "evil").unwrap()),
        ("pipe", |at, _, _| {
            let mode = rustix::fs::Mode::RWXU;
            let pipe = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, at, pipe, mode, 0).unwrap();
        }),
    ];
    for (kind, make) in kinds {
        let evil = dir.path().join(kind);
        fs::create_dir(&evil).unwrap();
        for place in places {
            make(&evil.join(place), &climb, &outside);
        }
        let mut bench = start_as(|spec| {
            spec.root = on(&[&evil, &shell]);
            spec.tmpfs = vec![Scratch {
                inside: "/data/db".into(),
                bytes: 1 << 20,
            }];
        });
        let line = "echo x > /workspace/f && echo x > /tmp/f && echo x > /home/agent/f && \
                    echo x > /dev/shm/f && echo x > /data/db/f && echo x > /dev/null && \
                    cat /proc/1/status /etc/passwd";
        let said = says(&mut bench, line);
        assert!(said.contains("agent:x:1000"), "{kind}: {said}");
        let left: Vec<_> = fs::read_dir(&outside).unwrap().collect();
        assert!(left.is_empty(), "{kind}: {left:?}");
    }
}

#[test]
fn what_an_image_says_of_loading_and_ids_has_no_power() {
    let Some(busybox) = busybox() else { return };
    let dir = open_directory();
    let shell = shell_layer(dir.path(), &busybox);
    let evil = dir.path().join("evil");
    fs::create_dir_all(evil.join("etc")).unwrap();
    fs::create_dir_all(evil.join("dev")).unwrap();
    fs::write(evil.join("etc/ld.so.preload"), "/bin/evil.so\n").unwrap();
    fs::write(evil.join("dev/kmsg"), "evil").unwrap();
    fs::copy(&busybox, evil.join("busybox-as-root")).unwrap();
    fs::set_permissions(
        evil.join("busybox-as-root"),
        fs::Permissions::from_mode(0o6755),
    )
    .unwrap();
    let mut bench = start(on(&[&evil, &shell]));
    let said = says(
        &mut bench,
        "/busybox-as-root id; /busybox-as-root grep Cap /proc/self/status; ls /dev",
    );
    assert!(
        said.starts_with("uid=1000(agent) gid=1000(agent)"),
        "{said}"
    );
    assert!(said.contains("CapEff:\t0000000000000000"), "{said}");
    assert!(!said.contains("kmsg"), "{said}");
}

/// Marks of a layer hide what is below, and only that.
#[test]
fn marks_in_layers_hide_what_is_below() {
    let Some(busybox) = busybox() else { return };
    let dir = open_directory();
    let shell = shell_layer(dir.path(), &busybox);
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("etc")).unwrap();
    let opaque = rustix::fs::setxattr(
        top.join("etc"),
        "user.overlay.opaque",
        b"y",
        rustix::fs::XattrFlags::empty(),
    );
    opaque.unwrap();
    fs::create_dir_all(top.join("bin")).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    let node = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, top.join("bin/stat"), node, mode, 0).unwrap();
    let mut bench = start(on(&[&top, &shell]));
    let said = says(&mut bench, "ls /etc; ls /bin; cat /etc/passwd");
    assert!(!said.contains("image-release"), "{said}");
    assert!(!said.contains("imageuser"), "{said}");
    assert!(said.contains("agent:x:1000"), "{said}");
    assert!(!said.contains("stat\n"), "{said}");
}

#[test]
fn as_many_layers_as_may_be_and_one_more() {
    let Some(busybox) = busybox() else { return };
    let dir = open_directory();
    let shell = shell_layer(dir.path(), &busybox);
    let mut layers: Vec<PathBuf> = (1..MOST_LAYERS)
        .map(|number| {
            let layer = dir.path().join(format!("{}{number}", "long".repeat(50)));
            fs::create_dir(&layer).unwrap();
            fs::write(layer.join(format!("of-{number}")), "").unwrap();
            layer
        })
        .collect();
    layers.push(shell);
    let all = |layers: &[PathBuf]| on(&layers.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    let said = says(&mut start(all(&layers)), "ls /");
    let count = said.lines().filter(|name| name.starts_with("of-"));
    assert_eq!(count.count(), MOST_LAYERS - 1);
    layers.extend(vec![dir.path().join("shell"); 5000]);
    let root = all(&layers);
    let error = Bench::start_as(open_directory(), |spec| spec.root = root).map(drop);
    let error = error.unwrap_err();
    assert!(matches!(error, SandboxError::Launch(_)), "{error}");
    assert!(error.to_string().contains("5256 layers"), "{error}");
}

/// Homes and caches: shared below, private on top.
#[test]
fn an_overlay_is_private_and_memory_is_bounded() {
    let Some(busybox) = busybox() else { return };
    let dir = open_directory();
    let shell = shell_layer(dir.path(), &busybox);
    let shared = dir.path().join("shared");
    fs::create_dir_all(shared.join("home/sub")).unwrap();
    fs::write(shared.join("home/sub/kept"), "of all\n").unwrap();
    fs::create_dir_all(shared.join("cache")).unwrap();
    fs::write(shared.join("cache/index"), "of all\n").unwrap();
    let mut layers = Vec::new();
    let mut bench = start_as(|spec| {
        let (uid, gid) = spec.identity.agent_on_host();
        for path in ["home", "home/sub", "home/sub/kept", "cache", "cache/index"] {
            std::os::unix::fs::chown(shared.join(path), Some(uid), Some(gid)).unwrap();
        }
        for (inside, name) in [
            ("/home/agent", "home"),
            ("/home/agent/.cache/tool", "cache"),
        ] {
            let layer = dir.path().join(format!("{name}-layer"));
            for part in ["", "upper", "work"] {
                let path = layer.join(part);
                fs::create_dir(&path).unwrap();
                std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
            }
            layers.push(layer.clone());
            spec.overlays.push(PrivateOverlay {
                inside: inside.into(),
                lower: vec![shared.join(name)],
                layer,
            });
        }
        spec.root = on(&[&shell]);
        spec.tmpfs = vec![Scratch {
            inside: "/var/tmp/db".into(),
            bytes: 1 << 20,
        }];
    });
    let line = "cat /home/agent/sub/kept /home/agent/.cache/tool/index && \
                echo own > /home/agent/sub/kept && echo own >> /home/agent/.cache/tool/index && \
                rm -r /home/agent/sub && echo x > /var/tmp/db/x && \
                ! dd if=/dev/zero of=/var/tmp/db/big bs=1024 count=2000 2>/dev/null && \
                stat -c %s /tmp/db/big";
    let said = says(&mut bench, line);
    let (texts, size) = said.split_at("of all\nof all\n".len());
    assert_eq!(texts, "of all\nof all\n");
    let size: u64 = size.trim().parse().unwrap();
    assert!(size < 1 << 20, "{size}");
    drop(bench);
    for kept in ["home/sub/kept", "cache/index"] {
        assert_eq!(fs::read_to_string(shared.join(kept)).unwrap(), "of all\n");
    }
    assert!(layers[1].join("upper/index").is_file());
}

/// Root of its own image: packages can be laid, and that is all.
#[test]
fn a_setup_is_root_of_its_image_only() {
    let Some(busybox) = busybox() else { return };
    let dir = open_directory();
    let shell = shell_layer(dir.path(), &busybox);
    let written = dir.path().join("written");
    let mut many = false;
    let mut bench = start_as(|spec| {
        let identity = match spec.identity {
            Identity::Range {
                owner_uid,
                owner_gid,
                ..
            } => Identity::of_setup(owner_uid, owner_gid),
            _ => Identity::of_setup(0, 0),
        };
        many = !matches!(identity, Identity::Root { others: None, .. });
        let (uid, gid) = identity.root_on_host();
        for part in ["", "upper", "work"] {
            let path = written.join(part);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        }
        for path in ["upper", "work", ""] {
            let path = spec.workspace.layer.join(path);
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        }
        spec.identity = identity;
        spec.runs = Runs::Setup;
        spec.root = Root::Image(ImageRoot {
            lower: vec![shell.clone()],
            setup: None,
            writable: Some(written.clone()),
        });
    });
    let said = says(
        &mut bench,
        "id; grep -E 'Cap(Eff|Bnd|Prm)' /proc/self/status",
    );
    assert!(said.starts_with("uid=0(root) gid=0(root)"), "{said}");
    assert_eq!(said.matches("00000000000000fb").count(), 3, "{said}");
    let line = "mkdir -p /opt/tool /usr/bin && echo tool > /opt/tool/file && \
                echo new:x:77:77::/:/bin/sh >> /etc/passwd && rm /etc/image-release && \
                touch /bin/installed /srv/own && chmod 000 /opt/tool/file";
    says(&mut bench, line);
    let said = says(
        &mut bench,
        "echo t > /bin/tool && chmod 4755 /bin/tool && ls /bin",
    );
    assert!(said.contains("tool"), "{said}");
    if many {
        says(
            &mut bench,
            "touch /etc/of-new && chown 77:77 /etc/of-new && chmod 600 /etc/of-new",
        );
    }
    for refused in [
        "mknod /bin/disk b 8 0",
        "echo x > /proc/sys/kernel/hostname",
        "cat /proc/1/environ",
        "echo x > /proc/1/comm",
        "touch /dev/x",
        "touch /.ringfence/x",
        "kill -9 1; test ! -d /proc/1",
    ] {
        let done = bench.run(sh(refused));
        assert_ne!(done.exited.code, Some(0), "{refused}");
    }
    drop(bench);
    // What it made is below the next sandbox, which is an agent's.
    let setup = written.join("upper");
    let mut bench = start_as(|spec| {
        spec.root = Root::Image(ImageRoot {
            lower: vec![shell.clone()],
            setup: Some(setup.clone()),
            writable: None,
        });
    });
    let said = says(
        &mut bench,
        "id; ls /bin /etc; cat /etc/passwd; stat -c '%u %a' /bin/tool",
    );
    assert!(said.starts_with("uid=1000(agent)"), "{said}");
    assert!(
        said.contains("imageuser:x:1234") && said.contains("new:x:77"),
        "{said}"
    );
    assert!(
        said.contains("installed") && !said.contains("image-release"),
        "{said}"
    );
    let owner = if rustix::process::geteuid().is_root() {
        "0 4755"
    } else {
        "1000 4755"
    };
    assert!(said.contains(owner), "{said}");
}

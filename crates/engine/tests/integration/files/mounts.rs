//! Paths of the host that a policy shows: what can be done with them, and which never are.

use std::os::unix::net::UnixListener;

use ringfence_model::policy::{Files, Mount};

use super::bench::{Bench, lines, mount};

fn with(mounts: Vec<Mount>) -> Files {
    Files {
        mounts,
        ..Files::default()
    }
}

const TREE: &str = "
echo r > README; mkdir -p ../data/deep ../cache ../other; echo one > ../data/a; echo two > ../data/deep/b
echo key > ../key.pub; ln -s /etc ../data/etc; ln -s ../data ../link; chmod 755 ../data ../data/deep
";

#[test]
fn a_directory_is_read_and_nothing_of_it_changes() {
    let bench = Bench::new(TREE);
    let attacks = "
        echo x >> /data/a
        rm /data/a
        touch /data/new
        chmod 600 /data/a
        touch /data
        mv /data/deep /data/d2
        ln /data/a here
        echo x > /data/etc/hosts
        exec 8< /data/a; echo x >> /proc/self/fd/8
        rmdir /data
        mv /data /d2
    ";
    let script: String = attacks
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| format!("( {line} ) 2> /dev/null && echo WORKED '{line}'\n"))
        .collect();
    let before = bench.sh("find ../data -printf '%p %m %T@ %s\\n'");
    let ran = bench.run(
        with(vec![
            mount(&bench.path("data"), "/data", false),
            mount(&bench.path("key.pub"), "/home/agent/.config/key.pub", false),
        ]),
        &format!("{script} cat /data/a /data/deep/b ~/.config/key.pub; echo x > ~/.config/mine && echo fine; echo y > ~/.config/key.pub; cat /data/etc/hostname; grep -c '{}' /proc/self/mountinfo", bench.path("data").display()),
    );
    let said: Vec<&str> = ran
        .said
        .lines()
        .filter(|line| !line.starts_with("bash:"))
        .collect();
    // A link leads to what is inside.
    assert_eq!(
        said,
        ["one", "two", "key", "fine", "ringfence", "0"],
        "{}",
        ran.said
    );
    assert!(ran.said.contains("Read-only file system"), "{}", ran.said);
    assert_eq!(bench.sh("find ../data -printf '%p %m %T@ %s\\n'"), before);
    assert_eq!(bench.sh("cat ../key.pub"), "key\n");
    assert_eq!(ran.changes(), [""; 0]);
}

#[test]
fn what_is_writable_is_written_and_told() {
    let bench = Bench::new(TREE);
    let ran = bench.run(
        with(vec![mount(&bench.path("cache"), "/home/agent/.cache/tool", true)]),
        "echo x > ~/.cache/tool/new && mkdir ~/.cache/tool/d && echo y > ~/.cache/other && echo fine",
    );
    assert_eq!(ran.said, "fine\n");
    assert_eq!(
        bench.sh("cat ../cache/new; stat -c %u ../cache/new ../cache | sort -u | wc -l"),
        "x\n1\n"
    );
    assert_eq!(ran.changes(), [""; 0]);
    let note = format!(
        "`{}` of the host can be written",
        bench.path("cache").display()
    );
    assert!(
        ran.result.notes.iter().any(|n| n.contains(&note)),
        "{:?}",
        ran.result.notes
    );
    let journal = std::fs::read_to_string(ran.result.bundle.join("audit.jsonl")).unwrap();
    let held = format!(
        r#""mounts":[{{"host":"{}","inside":"/home/agent/.cache/tool","writable":true}}]"#,
        bench.path("cache").display()
    );
    assert!(journal.contains(&held), "{journal}");
    // Beside areas, too.
    let files = Files {
        write: Some(lines(&["out/**"])),
        ..with(vec![mount(&bench.path("cache"), "/cache", true)])
    };
    let ran = bench.run(
        files,
        "echo z > /cache/z && echo o > out/o && ! touch x 2> /dev/null && echo fine",
    );
    assert_eq!(ran.said, "fine\n");
    assert_eq!(bench.sh("cat ../cache/z"), "z\n");
}

/// What is made in a mount is the host user's own: with a set-id bit, anybody there would run it as
/// that user.
#[test]
fn no_set_id_program_is_left_on_the_host() {
    let bench = Bench::new(TREE);
    let attacks = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
os.chdir("/cache")
open("f", "w").close()
os.mkdir("d")
fd = os.open("f", os.O_RDWR)
ways = {
    "chmod": lambda m: os.chmod("f", m),
    "fchmod": lambda m: os.fchmod(fd, m),
    "fchmod of a directory": lambda m: os.chmod("d", m),
    "fchmodat": lambda m: os.chmod("f", m, dir_fd=os.open(".", os.O_RDONLY)),
    "open": lambda m: os.open("o", os.O_CREAT | os.O_WRONLY, m),
    "tmpfile": lambda m: os.open(".", os.O_TMPFILE | os.O_WRONLY, m),
    "mknod": lambda m: os.mknod("n", m),
}
if os.uname().machine == "x86_64":
    calls = {"chmod": (90, b"f"), "creat": (85, b"c"), "mknod": (133, b"m"), "fchmodat2": (452, -100, b"f")}
    def raw(number, *args):
        if libc.syscall(number, *args, 0) != 0:
            raise OSError(ctypes.get_errno(), "")
    for name, call in calls.items():
        ways["raw " + name] = lambda m, call=call: raw(*call, m)
    ways["raw open"] = lambda m: raw(2, b"r", 0o101, m)
for name, way in ways.items():
    for mode in [0o4755, 0o2755, 0o6777]:
        try:
            way(mode)
            print("WORKED", name, oct(mode))
        except PermissionError:
            pass
        except OSError as error:
            print("odd", name, error) if error.errno != 38 else None
# What has no such bit is as before.
os.chmod("f", 0o1751)
os.close(os.open("f", os.O_RDONLY, 0o6777))
os.close(os.open("g", os.O_CREAT | os.O_WRONLY, 0o751))
print("done")
"#;
    bench.sh("chmod 777 ../cache");
    std::fs::write(bench.folder().join("attack.py"), attacks).unwrap();
    let files = || with(vec![mount(&bench.path("cache"), "/cache", true)]);
    let ran = bench.run(files(), "python3 attack.py");
    assert_eq!(ran.said, "done\n");
    assert_eq!(bench.sh("find ../cache -perm /6000"), "");
    assert_eq!(bench.sh("stat -c %a ../cache/f"), "1751\n");
    // Without something of the host, programs that set such bits work.
    let ran = bench.run(Files::default(), "touch x && chmod 6755 x && stat -c %a x");
    assert_eq!(ran.said, "6755\n");
}

#[test]
fn no_socket_or_pipe_of_the_host_is_reached() {
    let bench = Bench::new(TREE);
    let socket = bench.path("data/docker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    bench.sh("chmod 777 ../data/docker.sock; mkfifo -m 666 ../data/pipe");
    let reach = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"/data/docker.sock\"); print(\"REACHED\")' 2>&1 | tail -1; timeout 1 sh -c 'echo x > /data/pipe'; echo done";
    let ran = bench.run(
        with(vec![mount(&bench.path("data"), "/data", false)]),
        reach,
    );
    assert!(!ran.said.contains("REACHED"), "{}", ran.said);
    assert!(
        ran.said.contains("refused") || ran.said.contains("denied"),
        "{}",
        ran.said
    );
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    let said = bench.refusal(with(vec![mount(&bench.path("data"), "/data", true)]));
    assert!(said.contains("is a socket, pipe or device"), "{said}");
    let said = bench.refusal(with(vec![mount(&socket, "/run/docker.sock", false)]));
    assert!(said.contains("it is a socket"), "{said}");
}

#[test]
fn what_must_not_be_shown_is_refused() {
    let bench = Bench::new(TREE);
    let home = std::env::home_dir().unwrap();
    let above = home.parent().map(std::path::Path::to_owned);
    let data = bench.path("data");
    for (host, inside, expected) in [
        ("/".into(), "/data", "the whole host"),
        ("/proc".into(), "/data", "a face of the kernel"),
        ("/proc/1".into(), "/data", "a face of the kernel"),
        ("/sys/kernel".into(), "/data", "a face of the kernel"),
        ("/dev/null".into(), "/data", "a face of the kernel"),
        ("/dev/shm".into(), "/data", "a face of the kernel"),
        (bench.home.root().to_owned(), "/data", "Ringfence itself"),
        (bench.home.root().join("store"), "/data", "Ringfence itself"),
        (bench.path("."), "/data", "Ringfence itself"),
        (bench.folder(), "/data", "worked on"),
        (bench.folder().join("README"), "/data", "worked on"),
        (bench.path("link"), "/data", "there is a link in it"),
        (bench.path("link/deep"), "/data", "there is a link in it"),
        (bench.path("data/../other"), "/data", "without `..`"),
        ("relative".into(), "/data", "no absolute path"),
        (bench.path("missing"), "/data", "cannot open"),
        (data.clone(), "/workspace", "something of its own"),
        (data.clone(), "/workspace/data", "something of its own"),
        (data.clone(), "/usr/share/x", "something of its own"),
        (data.clone(), "/etc", "something of its own"),
        (data.clone(), "/proc/x", "something of its own"),
        (data.clone(), "/tmp/x", "something of its own"),
        (data.clone(), "/home/agent", "something of its own"),
        (data.clone(), "/.ringfence/tools", "something of its own"),
        (data.clone(), "/a/../usr/x", "something of its own"),
        (data.clone(), "data", "something of its own"),
        (home, "/data", "home directory"),
        ("/home".into(), "/data", "home directory"),
        (
            std::path::Path::new("/home").join("ann"),
            "/data",
            "home directory",
        ),
        ("/root".into(), "/data", "home directory"),
    ]
    .into_iter()
    .chain(above.map(|above| (above, "/data", "cannot be mounted")))
    {
        let said = bench.refusal(with(vec![mount(&host, inside, false)]));
        assert!(said.contains(expected), "{host:?} {inside}: {said}");
    }
    let said = bench.refusal(with(vec![
        mount(&data, "/data", false),
        mount(&bench.path("cache"), "/data/cache", false),
    ]));
    assert!(said.contains("in each other's way"), "{said}");
}

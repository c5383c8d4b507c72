//! The memory that the kernel still grants this process: what the machine has available, and what control groups (v1 and v2) and
//! limits of the process leave of it.
//!
//! Formats: proc(5), the kernel's documents on cgroup-v2 and on memory (v1). Where a file is missing or unusual, it limits nothing.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that this process can take without swapping and without being ended for it; `None` if the system does not say.
pub fn available() -> Option<u64> {
    of(Path::new("/"))
}

/// [`available`] with the files below `root`.
fn of(root: &Path) -> Option<u64> {
    let process = root.join("proc/self");
    let all = [
        of_machine(root),
        of_groups(root, &process),
        of_limits(&process),
    ];
    all.into_iter().flatten().min()
}

fn of_machine(root: &Path) -> Option<u64> {
    kilobytes(&read(&root.join("proc/meminfo"))?, "MemAvailable:")
}

/// A number of kB after a name.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number = line.trim().strip_suffix("kB")?.trim();
    number.parse::<u64>().ok()?.checked_mul(1024)
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The names of a version of control groups.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// The line of `memory.stat` for pages of files that can be dropped at once.
    droppable: &'static str,
}

const V1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    droppable: "total_inactive_file ",
};
const V2: GroupFiles = GroupFiles {
    limit: "memory.max",
    usage: "memory.current",
    droppable: "inactive_file ",
};

/// The least that the control groups of the process and those above them leave.
fn of_groups(root: &Path, process: &Path) -> Option<u64> {
    let (groups, mounts) = (
        read(&process.join("cgroup"))?,
        read(&process.join("mountinfo"))?,
    );
    let left = groups.lines().filter_map(|line| {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (files, kind) = match number {
            "0" => (&V2, "cgroup2"),
            _ if controllers.split(',').any(|of| of == "memory") => (&V1, "cgroup"),
            _ => return None,
        };
        let (mount, below) = mounts.lines().find_map(|line| mounted(line, kind, path))?;
        let mount = root.join(mount.strip_prefix('/')?);
        let own = below.map_or_else(|| mount.clone(), |below| mount.join(below));
        let above = own
            .ancestors()
            .take_while(|folder| folder.starts_with(&mount));
        above.filter_map(|folder| files.left(folder)).min()
    });
    left.min()
}

/// Where a hierarchy is mounted, and the path of a group below; no path if it lies outside, as in a namespace of its own.
fn mounted<'a>(line: &'a str, kind: &str, path: &'a str) -> Option<(&'a str, Option<PathBuf>)> {
    // id parent device root mount-point options [fields] - type source options
    let (first, last) = line.split_once(" - ")?;
    let mut last = last.split(' ');
    let is_it = last.next()? == kind
        && (kind == "cgroup2" || last.nth(1)?.split(',').any(|of| of == "memory"));
    if !is_it {
        return None;
    }
    let mut fields = first.split(' ').skip(3);
    let (root, mount) = (fields.next()?, fields.next()?);
    let below = path.strip_prefix(root.trim_end_matches('/'));
    let below = below.filter(|below| !below.split('/').any(|part| part == ".."));
    Some((
        mount,
        below.map(|below| PathBuf::from(below.trim_start_matches('/'))),
    ))
}

impl GroupFiles {
    /// What a group leaves; none if it has no limit.
    fn left(&self, folder: &Path) -> Option<u64> {
        let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
        let (limit, usage) = (number(self.limit)?, number(self.usage)?);
        let statistics = read(&folder.join("memory.stat")).unwrap_or_default();
        let droppable = statistics
            .lines()
            .find_map(|line| line.strip_prefix(self.droppable)?.trim().parse().ok());
        Some(limit.saturating_sub(usage.saturating_sub(droppable.unwrap_or(0))))
    }
}

/// The least that the limits of the process leave (`ulimit -v`, `ulimit -d`).
fn of_limits(process: &Path) -> Option<u64> {
    let (limits, status) = (
        read(&process.join("limits"))?,
        read(&process.join("status"))?,
    );
    let left = |(limit, used): (&str, &str)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        let soft: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(soft.saturating_sub(kilobytes(&status, used).unwrap_or(0)))
    };
    let all = [
        ("Max address space", "VmSize:"),
        ("Max data size", "VmData:"),
    ];
    all.into_iter().filter_map(left).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A folder with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("it is written");
        }
        root
    }

    const MACHINE: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 4194304 kB\nMemAvailable:    1048576 kB\n",
    );

    #[test]
    fn the_machine_alone_has_what_it_says() {
        assert_eq!(of(root(&[MACHINE]).path()), Some(1024 * MIB));
        assert_eq!(
            of(root(&[("proc/meminfo", "MemAvailable: x kB\n")]).path()),
            None
        );
        assert_eq!(of(root(&[]).path()), None);
    }

    #[test]
    fn groups_of_both_versions_and_those_above_them_limit() {
        let v2 = [
            MACHINE,
            ("proc/self/cgroup", "0::/pods/one\n"),
            (
                "proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
            ),
            ("sys/fs/cgroup/pods/one/memory.max", "max\n"),
            ("sys/fs/cgroup/pods/one/memory.current", "1048576\n"),
            ("sys/fs/cgroup/pods/memory.max", "314572800\n"),
            ("sys/fs/cgroup/pods/memory.current", "209715200\n"),
            (
                "sys/fs/cgroup/pods/memory.stat",
                "anon 1\ninactive_file 104857600\n",
            ),
        ];
        assert_eq!(of(root(&v2).path()), Some(200 * MIB));
        // In a namespace of its own the group is where the hierarchy is mounted.
        let namespace = [
            MACHINE,
            ("proc/self/cgroup", "0::/\n"),
            v2[2],
            ("sys/fs/cgroup/memory.max", "314572800\n"),
            ("sys/fs/cgroup/memory.current", "104857600\n"),
        ];
        assert_eq!(of(root(&namespace).path()), Some(200 * MIB));
        let v1 = [
            MACHINE,
            (
                "proc/self/cgroup",
                "5:cpu:/other\n4:cpuset,memory:/docker/1/inner\n0::/\n",
            ),
            (
                "proc/self/mountinfo",
                "32 31 0:29 /docker/1 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                 35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9\n"),
            (
                "sys/fs/cgroup/memory/inner/memory.limit_in_bytes",
                "104857600\n",
            ),
            (
                "sys/fs/cgroup/memory/inner/memory.usage_in_bytes",
                "209715200\n",
            ),
            (
                "sys/fs/cgroup/memory/inner/memory.stat",
                "total_inactive_file 157286400\n",
            ),
        ];
        assert_eq!(of(root(&v1).path()), Some(50 * MIB));
        // A path outside of what is mounted.
        let outside = [
            MACHINE,
            ("proc/self/cgroup", "0::/../other\n"),
            v2[2],
            ("sys/fs/cgroup/memory.max", "104857600\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
        ];
        assert_eq!(of(root(&outside).path()), Some(100 * MIB));
    }

    #[test]
    fn limits_of_the_process_leave_what_is_not_taken() {
        let files = [
            MACHINE,
            (
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             unlimited            unlimited            bytes\n\
                 Max address space         524288000            unlimited            bytes\n",
            ),
            (
                "proc/self/status",
                "VmSize:\t  102400 kB\nVmData:\t 10 kB\n",
            ),
        ];
        assert_eq!(of(root(&files).path()), Some(400 * MIB));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_some() {
        assert!(available().is_some_and(|bytes| bytes > 0));
    }
}

//! An initramfs with one file in it: the "newc" archive format (Linux,
//! Documentation/driver-api/early-userspace/buffer-format.rst).

const REGULAR_EXECUTABLE: u32 = 0o100_755;

/// An archive with the executable `init` in its root.
pub(crate) fn archive_with_init(init: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    add(&mut archive, 1, REGULAR_EXECUTABLE, "init", init);
    add(&mut archive, 0, 0, "TRAILER!!!", &[]);
    archive
}

fn add(archive: &mut Vec<u8>, inode: u32, mode: u32, name: &str, data: &[u8]) {
    let size = u32::try_from(data.len()).unwrap();
    let name_size = u32::try_from(name.len() + 1).unwrap();
    // inode, mode, uid, gid, links, mtime, size, device (2), device of the file (2), name, checksum
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").into_bytes());
    }
    archive.extend(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend(data);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

//! Writer of cpio archives in the "newc" format, the one that Linux unpacks as initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's source).
//!
//! An archive is a sequence of entries: a header of 110 ASCII bytes, the name with a NUL, padding to
//! a multiple of 4, the content, padding again. It ends with an entry named `TRAILER!!!`.
//!
//! The writer takes nothing from the machine that it runs on: owner is root, the time is 1970, inode
//! numbers count from 1. So the same calls give the same bytes.

use std::io::{self, Write};

const MAGIC: &str = "070701";
const DIRECTORY: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const REGULAR_FILE: u32 = 0o100_000;
/// Archives are padded to this length, as other writers do.
const BLOCK: u64 = 512;

/// An archive being written. Names are relative (`dev/console`); a directory comes before its content.
pub(crate) struct Archive<W> {
    out: W,
    written: u64,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, written: 0, inode: 0 }
    }

    /// A directory with permission bits `mode`.
    ///
    /// # Errors
    /// Writing fails.
    pub(crate) fn directory(&mut self, name: &str, mode: u32) -> io::Result<()> {
        self.entry(name, DIRECTORY | mode, 2, (0, 0), &[])
    }

    /// A regular file.
    ///
    /// # Errors
    /// Writing fails, or `content` has 4 GiB or more, which the format cannot express.
    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(name, REGULAR_FILE | mode, 1, (0, 0), content)
    }

    /// A character device with (major, minor) number.
    ///
    /// # Errors
    /// Writing fails.
    pub(crate) fn character_device(&mut self, name: &str, mode: u32, number: (u32, u32)) -> io::Result<()> {
        self.entry(name, CHARACTER_DEVICE | mode, 1, number, &[])
    }

    /// Ends the archive and gives the output back.
    ///
    /// # Errors
    /// Writing fails.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        // The trailer has no inode number.
        self.header("TRAILER!!!", 0, 0, 1, (0, 0), 0)?;
        self.pad(BLOCK)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        name: &str,
        mode: u32,
        links: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let plain = !name.is_empty() && !name.starts_with('/') && !name.contains('\0');
        let length = u32::try_from(content.len()).ok().filter(|_| plain);
        let Some(length) = length else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} with {} bytes has no place in a newc archive", content.len()),
            ));
        };
        self.inode += 1;
        self.header(name, self.inode, mode, links, device, length)?;
        self.write(content)?;
        self.pad(4)
    }

    fn header(
        &mut self,
        name: &str,
        inode: u32,
        mode: u32,
        links: u32,
        (major, minor): (u32, u32),
        length: u32,
    ) -> io::Result<()> {
        let name_length = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        // inode, mode, uid, gid, links, time, length, device of the file system (2), device number (2),
        // length of the name, checksum (unused in this variant).
        let fields = [inode, mode, 0, 0, links, 0, length, 0, 0, major, minor, name_length, 0];
        let mut header = String::from(MAGIC);
        header.extend(fields.map(|field| format!("{field:08X}")));
        self.write(header.as_bytes())?;
        self.write(name.as_bytes())?;
        self.write(&[0])?;
        self.pad(4)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let zeros = [0; 512];
        let missing = self.written.next_multiple_of(alignment) - self.written;
        self.write(&zeros[..usize::try_from(missing).unwrap_or(0)])
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use std::process::{Command, Stdio};

    use super::*;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.directory("dev", 0o755).expect("directory");
        archive.character_device("dev/console", 0o600, (5, 1)).expect("device");
        archive.file("init", 0o755, b"#!program").expect("file");
        archive.file("empty", 0o644, b"").expect("file");
        archive.finish().expect("finish")
    }

    /// Runs cpio on the sample; `None` where there is no cpio (then the byte test below must do).
    fn cpio(arguments: &[&str], directory: &std::path::Path) -> Option<String> {
        let mut child = Command::new("cpio")
            .args(arguments)
            .current_dir(directory)
            .env("TZ", "UTC")
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        child.stdin.take().expect("stdin").write_all(&sample()).expect("write");
        let output = child.wait_with_output().expect("output");
        assert!(output.status.success());
        Some(String::from_utf8(output.stdout).expect("text"))
    }

    #[test]
    fn header_and_padding_are_as_the_format_says() {
        let bytes = sample();
        assert_eq!(bytes.len() % 512, 0);
        let expected = "070701\
            00000001000041ED000000000000000000000002000000000000000000000000000000000000000000000000\
            0000000400000000dev\0";
        assert_eq!(&bytes[..expected.len()], expected.as_bytes());
        // The second header begins at the next multiple of 4.
        assert_eq!(&bytes[expected.len().next_multiple_of(4)..][..6], b"070701");
        assert_eq!(sample(), bytes);
    }

    #[test]
    fn cpio_lists_the_archive() {
        let directory = tempfile::tempdir().expect("tempdir");
        let Some(listing) = cpio(&["-itv", "--quiet", "--numeric-uid-gid"], directory.path()) else { return };
        let lines: Vec<Vec<&str>> = listing.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{listing}");
        assert_eq!((lines[0][0], *lines[0].last().expect("name")), ("drwxr-xr-x", "dev"));
        assert_eq!((lines[1][0], lines[1][4], lines[1][5]), ("crw-------", "5,", "1"));
        assert_eq!((lines[2][0], lines[2][2], lines[2][3], lines[2][4]), ("-rwxr-xr-x", "0", "0", "9"));
        assert!(lines.iter().all(|line| line.contains(&"1970")), "{listing}");
    }

    #[test]
    fn cpio_unpacks_the_archive() {
        let directory = tempfile::tempdir().expect("tempdir");
        // Making a device needs root; without it the other entries must do.
        let root = fs::metadata(directory.path()).expect("metadata").uid() == 0;
        let arguments: &[&str] =
            if root { &["-id", "--quiet"] } else { &["-id", "--quiet", "-f", "dev/console"] };
        if cpio(arguments, directory.path()).is_none() {
            return;
        }
        assert_eq!(fs::read(directory.path().join("init")).expect("init"), b"#!program");
        assert_eq!(fs::read(directory.path().join("empty")).expect("empty"), b"");
        let mode = |name: &str| fs::metadata(directory.path().join(name)).expect("metadata").mode() & 0o7777;
        assert_eq!((mode("init"), mode("empty"), mode("dev")), (0o755, 0o644, 0o755));
        if root {
            let console = fs::metadata(directory.path().join("dev/console")).expect("device");
            assert!(console.file_type().is_char_device());
            assert_eq!(console.rdev(), 5 << 8 | 1);
        }
    }

    #[test]
    fn absolute_and_empty_names_are_refused() {
        let mut archive = Archive::new(Vec::new());
        for name in ["", "/init", "a\0b"] {
            assert_eq!(
                archive.file(name, 0o644, b"").expect_err("refused").kind(),
                io::ErrorKind::InvalidInput
            );
        }
        assert!(archive.out.is_empty());
    }
}

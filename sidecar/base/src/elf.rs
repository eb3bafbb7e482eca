//! Reads the headers and sections of a Linux program: its processor, whether it needs a loader and libraries, and data
//! that was put into it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The headers of a 64-bit little-endian ELF file, the format of every machine that the shim is built for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ElfHeaders {
    /// `EM_X86_64` is 62, `EM_AARCH64` is 183.
    pub machine: u16,
    pub linking: Linking,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Linking {
    /// Needs a loader and libraries.
    Dynamic,
    Static,
}

/// The type of the program header that names the loader.
const PT_INTERP: usize = 3;

impl ElfHeaders {
    /// `file` is the whole file, or its beginning with all program headers. `None` if it is not such a file, or incomplete.
    pub fn read(file: &[u8]) -> Option<Self> {
        let number = |offset: usize, length: usize| -> Option<usize> {
            let bytes = file.get(offset..offset.checked_add(length)?)?;
            bytes
                .iter()
                .rev()
                .try_fold(0_usize, |value, byte| value.checked_mul(256)?.checked_add(usize::from(*byte)))
        };
        if file.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let machine = u16::try_from(number(18, 2)?).ok()?;
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let mut linking = Linking::Static;
        for index in 0..count {
            let header = table.checked_add(index.checked_mul(size)?)?;
            if number(header, 4)? == PT_INTERP {
                linking = Linking::Dynamic;
            }
        }
        Some(Self { machine, linking })
    }
}

/// The size of the ELF header, and of each section header.
const HEADER_BYTES: usize = 64;

/// The content of the section with this name; `None` if the program has no such section. A section larger than `max_bytes`
/// is an error.
pub fn read_section(program: &File, name: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let invalid = || io::Error::other("the program's section headers are damaged");
    let header = read_at::<HEADER_BYTES>(program, 0)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(io::Error::other("it is not a 64-bit Linux program"));
    }
    let (table, count) = (number(&header[40..48]), number(&header[60..62]));
    let section = |index: u64| -> io::Result<[u8; HEADER_BYTES]> {
        let offset = table.checked_add(index * HEADER_BYTES as u64).ok_or_else(invalid)?;
        read_at(program, offset)
    };
    if table == 0 || count == 0 {
        return Ok(None);
    }
    if number(&header[58..60]) != HEADER_BYTES as u64 {
        return Err(invalid());
    }
    // Where the names of the sections are.
    let names = number(&section(number(&header[62..64]))?[24..32]);
    for index in 0..count {
        let section = section(index)?;
        let mut found = vec![0; name.len() + 1];
        let offset = names.checked_add(number(&section[..4])).ok_or_else(invalid)?;
        // Fails for a shorter name at the end of the file, which is another name.
        if program.read_exact_at(&mut found, offset).is_err()
            || found.strip_suffix(b"\0") != Some(name.as_bytes())
        {
            continue;
        }
        let size = number(&section[32..40]);
        if size > max_bytes {
            return Err(io::Error::other(format!("its section `{name}` has more than {max_bytes} bytes")));
        }
        let mut content = vec![0; usize::try_from(size).map_err(|_| invalid())?];
        program.read_exact_at(&mut content, number(&section[24..32]))?;
        return Ok(Some(content));
    }
    Ok(None)
}

fn read_at<const LENGTH: usize>(file: &File, offset: u64) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers of a program for x86_64 with these types of program headers.
    fn program(types: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(64, 0);
        (file[18], file[32], file[54], file[56]) = (62, 64, 56, types.len() as u8);
        for kind in types {
            file.push(*kind);
            file.extend([0; 55]);
        }
        file
    }

    fn linking(file: &[u8]) -> Option<Linking> {
        ElfHeaders::read(file).map(|headers| headers.linking)
    }

    #[test]
    fn a_program_with_a_loader_is_dynamic() {
        assert_eq!(linking(&program(&[6, 3, 1])), Some(Linking::Dynamic));
        assert_eq!(
            ElfHeaders::read(&program(&[1, 2])),
            Some(ElfHeaders { machine: 62, linking: Linking::Static })
        );
        assert_eq!(linking(&std::fs::read("/proc/self/exe").unwrap()), Some(Linking::Dynamic));
    }

    #[test]
    fn other_and_truncated_files_are_not_read() {
        assert_eq!(linking(b"#!/bin/sh\n"), None);
        assert_eq!(linking(&program(&[1, 2])[..100]), None);
        let mut invalid_offset = program(&[1]);
        invalid_offset[32..40].fill(0xff);
        assert_eq!(linking(&invalid_offset), None);
    }
}

use super::*;

#[test]
fn messages_are_found_however_frames_split_them() {
    // Three messages: 3 bytes, 0 bytes and 300 bytes.
    let mut stream = vec![0, 0, 0, 0, 3, 7, 7, 7, 1, 0, 0, 0, 0, 0, 0, 0, 1, 44];
    stream.extend([9; 300]);
    for size in 1..=stream.len() {
        let (mut position, mut starts, mut at) = (START, Vec::new(), 0);
        for chunk in stream.chunks(size) {
            let mut rest = chunk;
            while !rest.is_empty() {
                if position == START {
                    starts.push(at + chunk.len() - rest.len());
                }
                (position, rest) = position.advance(rest);
            }
            at += chunk.len();
        }
        assert_eq!((starts, position), (vec![0, 8, 13], START), "chunks of {size}");
    }
}

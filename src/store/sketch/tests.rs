use super::*;

fn hash(number: u64) -> u64 {
    let product = u128::from(number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
    (product >> 64) as u64 ^ product as u64
}

#[test]
fn amounts_are_remembered_for_as_long_as_stated_and_rarely_mistaken() {
    let mut sketch = UsageSketch::new(32_000);
    for number in 0..1_000 {
        sketch.store(hash(number), 224);
    }
    // Half of them are in the previous half by now.
    for number in 1_000..1_999 {
        sketch.store(hash(number), 6);
    }
    assert!((0..1_000).all(|number| sketch.load(hash(number)) == 224), "forgotten too early");
    assert!((1_000..1_999).all(|number| sketch.load(hash(number)) >= 6));
    let mistaken = (10_000..110_000).filter(|number| sketch.load(hash(*number)) > 0).count();
    assert!(mistaken < 100, "{mistaken} of 100,000");
    for number in 2_000..4_000 {
        sketch.store(hash(number), 1);
    }
    let left = (0..1_000).filter(|number| sketch.load(hash(*number)) == 224).count();
    assert!(left < 20, "{left} are still remembered");
}

#[test]
fn the_smallest_sketch_holds_one_amount() {
    let mut sketch = UsageSketch::new(0);
    sketch.store(hash(7), 8);
    assert_eq!(sketch.load(hash(7)), 8);
}

#[test]
fn amounts_are_rounded_up_by_at_most_a_quarter() {
    let amounts = (0..=1_000).chain((0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, (1 << bit) + 1, 5 << (bit / 2)]));
    for amount in amounts.chain([u64::MAX, u64::MAX / 3]) {
        let rounded = decode(encode(amount));
        assert!(rounded >= amount, "{amount} became {rounded}");
        assert!(amount > 8 || rounded == amount, "{amount} became {rounded}");
        assert!(rounded - amount <= amount / 4, "{amount} became {rounded}");
    }
}

// Programs of npm, in one process for many calls. Standard input is a socket: each line that comes is a call,
// [name, ...arguments], and is answered by a line, {made} or {error}. Standard output is left to the programs.
const fs = require("fs");
const net = require("net");
const path = require("path");
const readline = require("readline");

let compiler; // circom's own 9 MB of WASM
// Optimising a compiler's WASM takes longer than what it compiles.
const startFast = () => require("v8").setFlagsFromString("--liftoff-only");

// snarkjs("groth16.verify", ...): a function of its library.
async function snarkjs(name, ...given) {
  const [group, method] = name.split(".");
  return require("snarkjs")[group][method](...given);
}

// circom(source, "--wasm", ...): what its command line does.
async function circom(...args) {
  const { CircomRunner, bindings } = require("circom2");
  startFast();
  compiler ??= WebAssembly.compile(fs.readFileSync(require.resolve("circom2/circom.wasm")));
  const program = await compiler;
  const preopens = {};
  for (let at = process.cwd(), up = "."; ; up = path.join(up, ".."), at = path.dirname(at)) {
    preopens[up] = up;
    if (at === path.dirname(at)) break;
  }
  const local = args.map((one) => (one.startsWith("-") ? one : path.relative(process.cwd(), one)));
  const runner = new CircomRunner({ args: local, env: process.env, preopens, bindings: { ...bindings, fs } });
  runner.compile = async () => program;
  await runner.execute();
}

// Compiles a contract and calls its verifyProof with each list of words: the answers (true, false, or the
// error's name), and the gas of each.
async function contract(source, name, calls) {
  startFast();
  const solc = require("solc");
  const { createEVM } = require("@ethereumjs/evm");
  const { createAddressFromString, hexToBytes, bytesToHex } = require("@ethereumjs/util");
  const wanted = { "*": { "*": ["evm.bytecode.object", "evm.methodIdentifiers"] } };
  const settings = { outputSelection: wanted, optimizer: { enabled: true } };
  const input = { language: "Solidity", sources: { "a.sol": { content: source } }, settings };
  const made = JSON.parse(solc.compile(JSON.stringify(input)));
  const faults = (made.errors || []).map((one) => one.formattedMessage);
  if (faults.length) return { faults };
  const { bytecode, methodIdentifiers } = made.contracts["a.sol"][name].evm;
  const selector = Object.entries(methodIdentifiers).find(([text]) => text.startsWith("verifyProof("))[1];
  const evm = await createEVM();
  const caller = createAddressFromString("0x" + "11".repeat(20));
  const deployed = await evm.runCall({ caller, data: hexToBytes("0x" + bytecode.object), gasLimit: 10n ** 9n });
  if (deployed.execResult.exceptionError) return { faults: [String(deployed.execResult.exceptionError.error)] };
  const answers = [];
  for (const words of calls) {
    const text = words.map((word) => BigInt(word).toString(16).padStart(64, "0")).join("");
    const call = { caller, to: deployed.createdAddress, data: hexToBytes("0x" + selector + text), gasLimit: 10n ** 8n };
    const { execResult } = await evm.runCall(call);
    const failed = execResult.exceptionError && String(execResult.exceptionError.error);
    answers.push([failed || BigInt(bytesToHex(execResult.returnValue)) === 1n, Number(execResult.executionGasUsed)]);
  }
  return { faults, answers, methods: Object.keys(methodIdentifiers) };
}

// OpenZeppelin's own roots of [types, rows] each.
async function openzeppelin(trees) {
  const { StandardMerkleTree } = require("@openzeppelin/merkle-tree");
  return trees.map(([types, rows]) => StandardMerkleTree.of(rows, types).root);
}

async function main() {
  const caller = new net.Socket({ fd: 0 });
  const functions = { snarkjs, circom, contract, openzeppelin };
  for await (const line of readline.createInterface({ input: caller })) {
    const [name, ...given] = JSON.parse(line);
    const answer = await functions[name](...given).then(
      (made) => ({ made }),
      (error) => ({ error: String((error && error.stack) || error) }),
    );
    caller.write(JSON.stringify(answer, (_, one) => (typeof one === "bigint" ? String(one) : one)) + "\n");
  }
  process.exit(); // threads of snarkjs would stay
}

main();

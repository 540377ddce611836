// Compiles a contract and calls its verifyProof: {source, name, calls: [[word, ...], ...]} from standard input,
// a list of answers (true, false, or the error's name) and the gas of each to standard output.
const solc = require("solc");
const { createEVM } = require("@ethereumjs/evm");
const { createAddressFromString, hexToBytes, bytesToHex } = require("@ethereumjs/util");

async function main() {
  const { source, name, calls } = JSON.parse(require("fs").readFileSync(0));
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

main().then((page) => console.log(JSON.stringify(page)));
